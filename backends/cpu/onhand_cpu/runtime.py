"""Runs a decoder's graph: buffers bound once, the KV cache written in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from onhand.backends import Batch, CacheShape, Chunk, LayerKv, Logits
from onhand.errors import BackendError
from onhand.formats.spec import DecoderSpec, rope_tables
from onhand.runtime_checks import (
    check_batch,
    check_eviction,
    check_restoring,
    check_slot,
    check_truncation,
    checked_layers,
)
from onhand_cpu import denormals
from onhand_cpu.attention_blocks import run_tokens
from onhand_cpu.denormals import no_denormals
from onhand_cpu.kv_cache import KvCache
from onhand_cpu.kv_scales import KvScales

MAX_CHUNK_TOKENS = 512
"""Most tokens of one run; longer chunks are cut."""

SHORT_CHUNK_TOKENS = 16
"""Chunks of up to so many tokens run together, padded to the longest; their bindings are kept."""

# A run writes the keys of all its rows, padding too, into the places behind what a slot holds.
SPARE_PLACES = MAX_CHUNK_TOKENS

# ONNX Runtime's exceptions have no common base of their own.
_ORT_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    *(kind for kind in vars(ort_errors).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)


class CpuRuntime:
    """A decoder on ONNX Runtime's CPU provider.

    model: the graph's file. threads: of the intra-op pool. slots, context_tokens: what the KV cache is allocated for.
    scales: what a graph with an 8-bit KV cache needs and the others do not take.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        model: Path,
        *,
        threads: int,
        context_tokens: int,
        slots: int = 1,
        scales: KvScales | None = None,
    ) -> None:
        self.spec = spec
        numbers = spec.kv_values_per_token
        scale_bytes = -(-numbers * 4 // (slots * context_tokens))  # a token's share of them
        size = numbers * 4 if scales is None else numbers + scale_bytes
        self.cache = CacheShape(slots=slots, tokens=context_tokens, bytes_per_token=size)
        self._session: ort.InferenceSession | None = _session(model, threads)
        capacity = context_tokens + SPARE_PLACES
        self._kv = KvCache(spec, slots=slots, capacity=capacity, context_tokens=context_tokens, scales=scales)
        self._float_cache = scales is None
        self._tables = {
            f"{name}.{i}": ort.OrtValue.ortvalue_from_numpy(table)
            for i, rope in enumerate(spec.ropes)
            for name, table in zip(("cos", "sin"), rope_tables(rope, capacity, context_tokens), strict=True)
        }
        if scales is not None:
            for name, steps in (("keys_scale", scales.keys), ("values_scale", scales.values)):
                for i, layer in enumerate(steps):
                    self._tables[f"{name}.{i}"] = ort.OrtValue.ortvalue_from_numpy(layer.ravel())
        self._views: dict[tuple[int, int], dict[str, ort.OrtValue]] = {}
        self._bindings: dict[tuple[int, int, int, int], _Binding] = {}
        # Shared by all bindings: logits are valid until the next call, and memory is given as rows are written.
        self._logits = np.empty((SHORT_CHUNK_TOKENS * slots, spec.vocab_size), np.float32)

    def forward(self, batch: Batch) -> Logits:
        """Append tokens; give logits. See `DecoderRuntime.forward`."""
        if self._session is None:
            raise BackendError("cpu", "the model was closed")
        check_batch(batch, self.spec, self.cache, self._kv.lengths)
        groups = self._groups(batch)
        if len(groups) == 1 and groups[0] == list(batch):  # the step that everybody waits for
            return self._run(groups[0])
        rows: dict[int, list[Logits]] = {chunk.slot: [] for chunk in batch}
        for group in groups:
            logits, start = self._run(group), 0
            for chunk in group:
                rows[chunk.slot].append(logits[start : start + _row_count(chunk)].copy())
                start += _row_count(chunk)
        return np.concatenate([part for chunk in batch for part in rows[chunk.slot]])

    def length(self, slot: int) -> int:
        """How many tokens the slot holds."""
        check_slot(slot, self.cache)
        return self._kv.lengths[slot]

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the slot's first `length` tokens: what lies behind them is written over."""
        check_truncation(slot, length, self.cache, self._kv.lengths)
        self._kv.lengths[slot] = length

    def evict(self, slot: int, first: int, count: int) -> None:
        """Take tokens out of a slot's middle. See `DecoderRuntime.evict`."""
        check_eviction(slot, first, count, self.cache, self._kv.lengths)
        self._kv.evict(slot, first, count)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the beginning of a slot to another. See `DecoderRuntime.copy`."""
        check_slot(target, self.cache)
        check_truncation(source, length, self.cache, self._kv.lengths)
        if source != target:
            self._kv.copy(source, target, length)

    def export(self, slot: int) -> Iterator[LayerKv]:
        """What the slot holds, layer by layer. See `DecoderRuntime.export`."""
        if self._session is None:
            raise BackendError("cpu", "the model was closed")
        check_slot(slot, self.cache)
        return self._kv.export(slot)

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        """Make a slot hold what was exported. See `DecoderRuntime.restore`."""
        if self._session is None:
            raise BackendError("cpu", "the model was closed")
        check_restoring(slot, tokens, self.cache)
        self._kv.restore(slot, checked_layers(layers, self.spec, tokens), tokens)

    def close(self) -> None:
        """Give back memory and threads."""
        self._bindings.clear()
        self._views.clear()
        self._tables.clear()
        self._session = None
        self._kv.release()

    def _groups(self, batch: Batch) -> list[list[Chunk]]:
        """What runs together, by slot: single tokens; short chunks, padded to the longest; each long piece alone."""
        pieces = [piece for chunk in sorted(batch, key=lambda chunk: chunk.slot) for piece in self._pieces(chunk)]
        single = [piece for piece in pieces if len(piece.tokens) == 1]
        short = [piece for piece in pieces if 1 < len(piece.tokens) <= SHORT_CHUNK_TOKENS]
        if len(pieces) > len(batch):  # pieces of one slot must run one after the other
            return [[piece] for piece in pieces]
        return [g for g in (single, short) if g] + [[p] for p in pieces if len(p.tokens) > SHORT_CHUNK_TOKENS]

    def _pieces(self, chunk: Chunk) -> list[Chunk]:
        """A chunk cut into what runs may take."""
        place, tokens, pieces = self._kv.lengths[chunk.slot], chunk.tokens, []
        while tokens:
            count = min(len(tokens), MAX_CHUNK_TOKENS)
            if self._float_cache:
                count = run_tokens(self.spec.head_size, place, count)
            rows = "none" if chunk.rows == "last" and count < len(tokens) else chunk.rows
            pieces.append(Chunk(slot=chunk.slot, tokens=tokens[:count], rows=rows))
            place, tokens = place + count, tokens[count:]
        return pieces

    def _run(self, group: Sequence[Chunk]) -> Logits:
        """One run of chunks in ascending slots; the slots between them idle. The wanted rows of all of them."""
        assert self._session is not None
        first, slots = group[0].slot, group[-1].slot - group[0].slot + 1
        width = max(len(chunk.tokens) for chunk in group)
        wanted = sum(map(_row_count, group))
        binding = self._binding(first, slots, width, max(wanted, 1))  # not every operator takes no rows at all
        binding.fill(group, self._kv.lengths)
        try:
            with no_denormals():
                self._session.run_with_iobinding(binding.io)
        except _ORT_ERRORS as error:
            raise BackendError("cpu", f"ONNX Runtime failed: {error}") from error
        for chunk in group:
            self._kv.lengths[chunk.slot] += len(chunk.tokens)
        return binding.logits[:wanted]

    def _binding(self, first: int, slots: int, tokens: int, rows: int) -> _Binding:
        """Bindings of the shapes that decode steps have are kept; those of a prompt's chunks are not worth it."""
        key = (first, slots, tokens, rows)
        if key in self._bindings:
            return self._bindings[key]
        assert self._session is not None
        shared = rows <= len(self._logits)
        logits = self._logits[:rows] if shared else np.empty((rows, self.spec.vocab_size), np.float32)
        binding = _Binding(self._session, first, (slots, tokens), logits, pairs=self._float_cache)
        for name, value in self._tables.items():
            binding.io.bind_ortvalue_input(name, value)
        for name, value in self._kv_views(first, slots).items():
            binding.io.bind_ortvalue_input(name, value)
            binding.io.bind_ortvalue_output(f"new_{name}", value)
        if tokens <= SHORT_CHUNK_TOKENS:
            self._bindings[key] = binding
        return binding

    def _kv_views(self, first: int, slots: int) -> dict[str, ort.OrtValue]:
        key = (first, slots)
        if key not in self._views:
            views = self._kv.buffers(first, slots)
            self._views[key] = {name: ort.OrtValue.ortvalue_from_numpy(view) for name, view in views}
        return self._views[key]


class _Binding:
    """The buffers of one shape of run."""

    def __init__(
        self, session: ort.InferenceSession, first: int, shape: tuple[int, int], logits: Logits, *, pairs: bool
    ) -> None:
        """first: the first slot. shape: slots and tokens. pairs: whether queries attend in even numbers only."""
        self.io = session.io_binding()
        slots, tokens = shape
        attended = tokens + tokens % 2
        self._first = first
        self.ids = np.zeros((slots, tokens), np.int64)
        self._pairs = pairs
        self.positions = np.zeros((slots, attended), np.int64)
        self.rows = np.zeros(len(logits), np.int64)
        self.attended_rows = np.minimum(np.arange(attended), tokens - 1).astype(np.int64)
        self.kept_rows = np.arange(tokens, dtype=np.int64)
        self.new_tokens = np.zeros(slots, np.int32)
        self.last_place = np.zeros(slots, np.int32)
        self.total_length = np.zeros(1, np.int32)
        self.logits = logits
        for name, buffer in vars(self).items():
            if isinstance(buffer, np.ndarray) and name != "logits":
                self.io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(buffer))
        self.io.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self.logits))
        self._places = np.arange(attended)
        self._width = tokens

    def fill(self, group: Sequence[Chunk], lengths: Sequence[int]) -> None:
        """Write what the run takes. lengths: how many tokens each slot holds before it."""
        row, total = 0, len(self._places)
        if len(self.ids) > 1:  # those that idle; what is said of the others is written over below
            held = lengths[self._first : self._first + len(self.ids)]
            self.new_tokens[:] = 0
            self.last_place[:] = [max(length - 1, 0) for length in held]
            total = max(total, *held)
        for chunk in group:
            slot, tokens, length = chunk.slot - self._first, len(chunk.tokens), lengths[chunk.slot]
            attending = tokens + tokens % 2 * self._pairs  # see onhand_cpu.decoder
            self.ids[slot, :tokens] = chunk.tokens
            np.add(self._places, length, out=self.positions[slot])
            self.new_tokens[slot] = attending
            self.last_place[slot] = length + attending - 1
            total = max(total, length + attending)
            end, count = slot * self._width + tokens, _row_count(chunk)
            self.rows[row : row + count] = range(end - count, end)
            row += count
        self.total_length[0] = total


def _row_count(chunk: Chunk) -> int:
    return len(chunk.tokens) if chunk.rows == "all" else 1 if chunk.rows == "last" else 0


def _session(model: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4  # what goes wrong comes as an exception
    options.add_session_config_entry("session.force_spinning_stop", "1")  # threads spin within a run, never between
    if denormals.SUPPORTED:
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    try:
        with no_denormals():  # the first session of a process changes the mode of the thread that makes it, for good
            return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except _ORT_ERRORS as error:
        raise BackendError(
            "cpu", f"{model} cannot be loaded: {error}; remove its folder to have it compiled again"
        ) from error
