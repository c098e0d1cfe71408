"""`onhand bench`: how fast a model is on this machine, and what it takes."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from onhand.cli import flags
from onhand.cli.console import megabytes, progress_bars, say, say_json
from onhand.cli.meters import energy_microjoules, joules_between, peak_memory_bytes, percentile
from onhand.errors import OptionError
from onhand.library.catalog import DEFAULT_MODEL
from onhand.options import CacheOptions, GenerationOptions
from onhand.types import DoneEvent, TextEvent

if TYPE_CHECKING:
    from onhand.model import Model

TEXT = (
    "The harbour lay quiet in the morning, and the fishermen mended their nets along the wall. One of them told of a "
    "winter when the ice had held for nine weeks, and how the children had walked across the bay to school. "
)
"""What prompts are cut from; each begins with another number, so that next to no KV of an earlier one is reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of seconds, interpolated."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFacts:
    """What `onhand bench --json` prints.

    prompt_tokens, completion_tokens: of a round, medians. threads: as asked for, None for the backend's own choice.
    ttft_seconds: from the question to the first piece of text. The tokens per second are medians; those of decoding are
    None when no reply had a second token. load_seconds: opening the model, compiled before or not. peak_memory_bytes:
    of the whole process. joules_per_token: of the processor while decoding; None where it has no counter, or none that
    may be read.
    """

    model: str
    backend: str
    threads: int | None
    context_tokens: int
    kv_bits: int
    rounds: int
    prompt_tokens: int
    completion_tokens: int
    load_seconds: float
    ttft_seconds: Latency
    prefill_tokens_per_second: float
    decode_tokens_per_second: float | None
    peak_memory_bytes: int | None
    joules_per_token: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    prompt_tokens: int
    read_tokens: int
    completion_tokens: int
    ttft_seconds: float
    prefill_seconds: float
    decode_seconds: float
    decode_joules: float | None


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name or file.")] = DEFAULT_MODEL,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt, about.")] = 512,
    tokens: Annotated[int, typer.Option(help="Most tokens of each reply.")] = 64,
    rounds: Annotated[int, typer.Option(help="How often.")] = 5,
    threads: flags.Threads = None,
    context: flags.Context = None,
    kv_bits: flags.KvBits = 32,
    oversize: flags.Oversize = False,
    json: flags.Json = False,
) -> None:
    """Measure how fast a model is on this machine: greedy replies, one after the other, with no guessing ahead."""
    for name, value in (("prompt_tokens", prompt_tokens), ("tokens", tokens), ("rounds", rounds)):
        if value < 1:
            raise OptionError(name, value, "a whole number from 1")
    started = time.perf_counter()
    cache = CacheOptions(context_tokens=context, kv_bits=kv_bits)
    with flags.opened(model, cache, threads=threads, oversize=oversize) as opened:
        load_seconds = time.perf_counter() - started
        if prompt_tokens + tokens > opened.context_tokens:
            raise OptionError(
                "prompt_tokens + tokens", prompt_tokens + tokens, f"at most {opened.context_tokens}, the context"
            )
        facts = _facts(opened, _measure(opened, prompt_tokens, tokens, rounds), threads, kv_bits, load_seconds)
    if json:
        say_json(asdict(facts))
    else:
        _print(facts)


def _measure(model: Model, prompt_tokens: int, tokens: int, rounds: int) -> list[_Round]:
    found = []
    with progress_bars() as progress:
        _ask(model, prompt_of(model, min(prompt_tokens, 16), 0), min(tokens, 4))  # the first run makes buffers
        for number in range(1, rounds + 1):
            found.append(_ask(model, prompt_of(model, prompt_tokens, number), tokens))
            if progress is not None:
                progress("measuring", number, rounds)
    return found


def prompt_of(model: Model, tokens: int, number: int) -> str:
    """A prompt of so many tokens, BOS not counted, and unlike those of other numbers from its start."""
    text = f"{number}. " + TEXT * (1 + tokens * 8 // len(TEXT))
    ids = model.tokenizer.encode(text)
    while len(ids) < tokens:  # of a tokenizer with very long tokens
        text += text
        ids = model.tokenizer.encode(text)
    return model.tokenizer.decode(ids[:tokens])


def _ask(model: Model, prompt: str, tokens: int) -> _Round:
    options = GenerationOptions(temperature=0, max_tokens=tokens, speculate=False)
    first, energy = 0.0, None
    started = time.perf_counter()
    with closing(model.complete(prompt, options)) as events:
        for event in events:
            if not first and isinstance(event, TextEvent | DoneEvent):
                first, energy = time.perf_counter() - started, energy_microjoules()
    assert isinstance(event, DoneEvent)  # a stream that was not closed ends with it
    usage = event.reply.usage
    return _Round(
        prompt_tokens=usage.prompt_tokens,
        read_tokens=usage.prompt_tokens - usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        ttft_seconds=first,
        prefill_seconds=usage.prefill_seconds,
        decode_seconds=usage.decode_seconds,
        decode_joules=joules_between(energy, energy_microjoules()),
    )


def _facts(model: Model, rounds: list[_Round], threads: int | None, kv_bits: int, load_seconds: float) -> BenchFacts:
    """The first token of a reply comes of its prompt, so decoding is what its other tokens took."""
    longer = [r for r in rounds if r.completion_tokens > 1]
    joules = [r.decode_joules / (r.completion_tokens - 1) for r in longer if r.decode_joules is not None]
    ttft = [r.ttft_seconds for r in rounds]
    return BenchFacts(
        model=model.name,
        backend=model.backend,
        threads=threads,
        context_tokens=model.context_tokens,
        kv_bits=kv_bits,
        rounds=len(rounds),
        prompt_tokens=round(percentile((r.prompt_tokens for r in rounds), 50)),
        completion_tokens=round(percentile((r.completion_tokens for r in rounds), 50)),
        load_seconds=load_seconds,
        ttft_seconds=Latency(p50=percentile(ttft, 50), p99=percentile(ttft, 99)),
        prefill_tokens_per_second=percentile((r.read_tokens / r.prefill_seconds for r in rounds), 50),
        decode_tokens_per_second=percentile(((r.completion_tokens - 1) / r.decode_seconds for r in longer), 50)
        if longer
        else None,
        peak_memory_bytes=peak_memory_bytes(),
        joules_per_token=percentile(joules, 50) if joules else None,
    )


def _print(facts: BenchFacts) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    decode, joules, memory = facts.decode_tokens_per_second, facts.joules_per_token, facts.peak_memory_bytes
    rows = {
        "time to first text, P50": f"{facts.ttft_seconds.p50:.3f} s",
        "time to first text, P99": f"{facts.ttft_seconds.p99:.3f} s",
        "prefill": f"{facts.prefill_tokens_per_second:.1f} tok/s",
        "decode": "unknown: no reply had a second token" if decode is None else f"{decode:.1f} tok/s",
        "peak memory": "unknown" if memory is None else megabytes(memory),
        "energy, decode": "unknown" if joules is None else f"{joules:.2f} J/token",
        "loading": f"{facts.load_seconds:.2f} s",
    }
    lines = box.ROUNDED if (sys.stdout.encoding or "").lower().startswith("utf") else box.ASCII
    table = Table(title=f"{facts.model} on {facts.backend}", title_justify="left", show_header=False, box=lines)
    table.add_column()
    table.add_column(justify="right")
    for label, value in rows.items():
        table.add_row(label, value)
    console = Console(no_color=True, force_terminal=False, width=80)
    with console.capture() as captured:
        console.print(table, highlight=False, markup=False)
    say(captured.get().rstrip("\n"))
    say(f"{facts.rounds} rounds: prompts of {facts.prompt_tokens} tokens, replies of {facts.completion_tokens}, greedy")
