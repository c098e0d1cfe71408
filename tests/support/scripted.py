"""A byte-level tokenizer and replies that are scripted as text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from onhand.backends import DecoderRuntime
from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.formats.gguf import GgufFile
from onhand.formats.tokenizer import Tokenizer
from onhand.options import CacheOptions, GenerationOptions
from onhand.testing import ScriptedRuntime, Step
from onhand.types import DoneEvent, Event, Reply, TextEvent
from support.tiny import END, VOCAB, write_tiny

GREEDY = GenerationOptions(temperature=0)


@cache
def byte_tokenizer() -> Tokenizer:
    """The tiny models' tokenizer: one token a byte, four special ones and "ab"."""
    with TemporaryDirectory() as folder, GgufFile.open(write_tiny(Path(folder) / "tiny.gguf")) as file:
        return Tokenizer.from_gguf(file)


def said(text: str) -> list[int]:
    """The tokens of a scripted reply, one a byte, its end included."""
    tokenizer = byte_tokenizer()
    by_byte = {tokenizer.token_bytes(token): token for token in range(256)}
    return [*(by_byte[bytes([byte])] for byte in text.encode()), END]


class PlainText:
    """An engine that continues plain token ids. engine: what does it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.runtime = engine.runtime

    def stream(self, ids: Sequence[int], options: GenerationOptions) -> Generator[Event, None, None]:
        return self.engine.stream(Prompt(ids), options)


def scripted(script: Iterable[Step], *, context_tokens: int = 4096, chunk_tokens: int = 8) -> PlainText:
    """A token loop over a script."""
    runtime = ScriptedRuntime(script, vocab_size=VOCAB, end_id=END, context_tokens=context_tokens)
    return over(runtime, chunk_tokens=chunk_tokens)


def over(runtime: DecoderRuntime, cache: CacheOptions | None = None, *, chunk_tokens: int = 8) -> PlainText:
    """A token loop over a runtime of a tiny model; a full window is an error unless `cache` says otherwise."""
    options = cache or CacheOptions(overflow="error")
    return PlainText(Engine(runtime, byte_tokenizer(), options, chunk_tokens=chunk_tokens))


def shown(events: Iterable[Event]) -> list[str]:
    """The pieces of text of a stream."""
    return [event.text for event in events if isinstance(event, TextEvent)]


def reply_of(events: Iterable[Event]) -> Reply:
    """The reply at a stream's end, which must be its last event and hold just what was shown."""
    collected = list(events)
    last = collected[-1]
    assert isinstance(last, DoneEvent)
    assert not any(isinstance(event, DoneEvent) for event in collected[:-1])
    assert last.reply.text == "".join(shown(collected))
    return last.reply
