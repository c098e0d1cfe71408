"""Real models whose window slides: what they lose, token by token, over prose that outgrows it; and without an end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from onhand.backends import Batch, Chunk, DecoderRuntime, Logits
from onhand.decoding.slots import Slot
from onhand.decoding.window import Prompt, Window
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.options import CacheOptions
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import real_package, real_tokenizer

Kind = TypeVar("Kind", bound=CpuRuntime)

Losses = npt.NDArray[np.float64]
"""What each token behind the first window costs, in nats."""

CHUNK_TOKENS = 128
"""Most tokens of a run whose logits are looked at: those of Gemma take a megabyte each."""


class UnrotatedRuntime(CpuRuntime):
    """The control: what stays moves up and keeps the angles of its old places."""

    def evict(self, slot: int, first: int, count: int) -> None:
        gone = slice(first, first + count)
        kept = [(np.delete(k, gone, axis=1), np.delete(v, gone, axis=1)) for k, v in self.export(slot)]
        self.restore(slot, kept, self.length(slot) - count)


class EndlessRuntime(CpuRuntime):
    """Never says that the text has ended. forward_seconds: of each run. longest: the most that the slot held."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.end_ids: list[int] = []
        self.forward_seconds: list[float] = []
        self.longest = 0

    def forward(self, batch: Batch) -> Logits:
        started = time.perf_counter()
        logits = super().forward(batch)
        self.forward_seconds.append(time.perf_counter() - started)
        self.longest = max(self.longest, self.length(0))
        logits[:, self.end_ids] = -np.inf
        return logits


def endless_runtime(name: str, window: int) -> EndlessRuntime:
    runtime = sliding_runtime(name, window, EndlessRuntime)
    runtime.end_ids = sorted(real_tokenizer(name).end_ids)
    return runtime


def sliding_runtime(name: str, window: int, kind: type[Kind]) -> Kind:
    """A real model whose cache is the window."""
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    return kind(spec, artifact_folder(package) / "decoder.onnx", threads=2, context_tokens=window)


def recomputed(runtime: DecoderRuntime, ids: Sequence[int], stride: int = 64, kept: int = 0) -> Losses:
    """Every `stride` tokens the last window is read anew, at most as many as it holds.

    kept: tokens of the beginning that stay in front of it.
    """
    slot, window, losses = Slot(runtime, 0), runtime.cache.tokens, list[float]()
    for first in range(window - 1, len(ids) - 1, stride):
        end = min(first + stride, len(ids) - 1)
        slot.cut_back(0)
        _read(slot, [*ids[:kept], *ids[end - window + kept : first]])
        losses += _scored(slot, ids, first, end)
    return np.array(losses)


def slid(runtime: DecoderRuntime, ids: Sequence[int], options: CacheOptions) -> Losses:
    """The window slides as the engine's does."""
    slot, window, losses = Slot(runtime, 0), Window.of(options, runtime.cache.tokens), list[float]()
    slot.cut_back(0)
    _read(slot, ids[: window.tokens - 1])
    while (first := len(slot.ids)) < len(ids) - 1:
        if slot.length == window.tokens:
            slot.evict(window.make_room(Prompt(ids), first, slot.cuts))
        losses += _scored(slot, ids, first, min(first + window.tokens - slot.length, len(ids) - 1))
    return np.array(losses)


def excess(losses: Losses, baseline: Losses) -> float:
    """How much higher the perplexity is: 0.01 for one percent."""
    return float(np.exp((losses - baseline).mean())) - 1


def _read(slot: Slot, ids: Sequence[int]) -> None:
    slot.runtime.forward([Chunk(slot=slot.number, tokens=ids, rows="none")])
    slot.append(ids, slot.cuts)


def _scored(slot: Slot, ids: Sequence[int], start: int, end: int) -> Iterator[float]:
    """Read ids[start:end], each of which predicts the next. Chunks change no logits, so they may be long."""
    for first in range(start, end, CHUNK_TOKENS):
        last = min(first + CHUNK_TOKENS, end)
        rows = slot.runtime.forward([Chunk(slot=slot.number, tokens=ids[first:last], rows="all")])
        slot.append(ids[first:last], slot.cuts)
        highest = rows.max(axis=-1, keepdims=True)
        totals = np.exp(rows - highest).sum(axis=-1, dtype=np.float64)
        chosen = rows[np.arange(len(rows)), ids[first + 1 : last + 1]]
        yield from (np.log(totals) + highest[:, 0] - chosen).tolist()
