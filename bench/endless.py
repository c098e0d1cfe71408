"""A text without an end in a window that slides: whether time per token and memory stay as they are.

python bench/endless.py [--model smollm2] [--tokens 20000] [--window 1024]

A token of another runtime, which stays as it is, is timed after every fifth: what a busy machine does to both says
nothing of the engine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import psutil
from common import machine, timed

from onhand.backends import Chunk
from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.options import CacheOptions, GenerationOptions
from onhand.types import DoneEvent
from onhand_cpu import CpuRuntime
from support.real import MODELS, prose_ids, real_tokenizer
from support.sliding import EndlessRuntime, endless_runtime, sliding_runtime

PROMPT_TOKENS = 64
SPAN = 1000
CONTROL_EVERY = 5


@dataclass(frozen=True, slots=True)
class Token:
    """Seconds of one token: all in all, of them in the model; and of the control that was run last."""

    seconds: float
    forward: float
    control: float


class Control:
    """A token at the end of a window that never changes."""

    def __init__(self, name: str, window: int) -> None:
        self._runtime = sliding_runtime(name, window, CpuRuntime)
        self._length = window - window // 16
        self._runtime.forward([Chunk(slot=0, tokens=prose_ids(name, self._length), rows="none")])

    def __call__(self) -> float:
        seconds = timed(lambda: self._runtime.forward([Chunk(slot=0, tokens=[1])]))
        self._runtime.truncate(0, self._length)
        return seconds


def generate(name: str, window: int, count: int) -> tuple[list[Token], list[int], EndlessRuntime]:
    """The tokens of one reply but its first, the resident memory after every SPAN of them, and what generated them."""
    runtime, control = endless_runtime(name, window), Control(name, window)
    engine = Engine(runtime, real_tokenizer(name), CacheOptions())
    options = GenerationOptions(temperature=0.8, seed=1, max_tokens=count, speculate=False)
    stream = engine.stream(Prompt(prose_ids(name, PROMPT_TOKENS)), options)
    tokens, memory, process = list[Token](), list[int](), psutil.Process()
    seconds, last, event = 0.0, control(), next(stream)
    while not isinstance(event, DoneEvent):
        runs, started = len(runtime.forward_seconds), time.perf_counter()
        event = next(stream)  # the bytes of half a character, which are none, come with a later token
        seconds += time.perf_counter() - started
        if made := runtime.forward_seconds[runs:]:
            tokens += [Token(seconds / len(made), sum(made) / len(made), last)] * len(made)
            seconds = 0.0
            if len(tokens) // SPAN > len(memory):
                memory.append(process.memory_info().rss)
            if len(tokens) % CONTROL_EVERY == 0:
                last = control()
    assert event.reply.usage.completion_tokens == count
    return tokens, memory, runtime


def described(tokens: list[Token]) -> str:
    """The medians of a span."""
    values = {
        "a token": [token.seconds for token in tokens],
        "of it outside the model": [token.seconds - token.forward for token in tokens],
        "the control": [token.control for token in tokens],
    }
    medians = ", ".join(f"{name} {statistics.median(found) * 1e3:.3f} ms" for name, found in values.items())
    return f"{medians}; all {sum(values['a token']):.1f} s"


def relative(tokens: list[Token]) -> float:
    """The median of a token's time, in times of the control."""
    return statistics.median(token.seconds / token.control for token in tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=1024)
    arguments = parser.parse_args()
    tokens, memory, runtime = generate(arguments.model, arguments.window, arguments.tokens)
    filled = arguments.window - PROMPT_TOKENS  # tokens until the window is full
    spans = [tokens[first : first + SPAN] for first in range(filled, len(tokens) - SPAN, SPAN)]
    spans[-1] = tokens[-SPAN:]
    print(f"{machine()}; {arguments.model}, {arguments.tokens} tokens in a window of {arguments.window}")
    for number, span in enumerate(spans):
        print(f"{number + 1:3}: {described(span)}; {relative(span):.3f} controls")
    print(f"a token of the last {SPAN} takes {relative(spans[-1]) / relative(spans[0]):.3f} of one of the first")
    start = memory[filled // SPAN]
    growth = " ".join(f"{(size - start) / 1e6:+.1f}" for size in memory[filled // SPAN :])
    print(f"resident memory, MB, every {SPAN} tokens from the full window on: {growth}")
    print(f"the slot held at most {runtime.longest} of {runtime.cache.tokens}")


if __name__ == "__main__":
    main()
