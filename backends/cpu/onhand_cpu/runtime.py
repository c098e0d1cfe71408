"""Runs a decoder's graph: buffers bound once, the KV cache written in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from onhand.backends import Batch, CacheShape, Chunk, Logits
from onhand.errors import BackendError, ContextOverflowError, OptionError
from onhand.formats.spec import DecoderSpec, rope_tables

MAX_CHUNK_TOKENS = 512
"""Most tokens of one run; longer chunks are cut. GroupQueryAttention needs that much room behind the context."""

# ONNX Runtime's exceptions have no common base of their own.
_ORT_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    *(kind for kind in vars(ort_errors).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)


class CpuRuntime:
    """A decoder on ONNX Runtime's CPU provider, one slot.

    model: the graph's file. threads: of the intra-op pool. context_tokens: what the KV cache is allocated for; the
    operating system gives the memory as it fills.
    """

    def __init__(self, spec: DecoderSpec, model: Path, *, threads: int, context_tokens: int) -> None:
        self.spec = spec
        self.cache = CacheShape(slots=1, tokens=context_tokens, bytes_per_token=spec.kv_values_per_token * 4)
        self._session: ort.InferenceSession | None = _session(model, threads)
        self._length = 0
        self._capacity = context_tokens + MAX_CHUNK_TOKENS
        self._fixed = self._fixed_buffers()
        self._scalars = {name: np.zeros(1, np.int32) for name in ("past_length", "total_length", "new_tokens")}
        self._bindings: dict[tuple[int, int], _Binding] = {}

    def forward(self, batch: Batch) -> Logits:
        """Append tokens; give logits. See `DecoderRuntime.forward`."""
        session = self._session
        if session is None:
            raise BackendError("cpu", "the model was closed")
        self._check(batch)
        parts = [self._run(session, piece) for chunk in batch for piece in _pieces(chunk)]
        wanted = [part for part in parts if len(part)]
        if not wanted:
            return np.empty((0, self.spec.vocab_size), np.float32)
        return wanted[0] if len(wanted) == 1 else np.concatenate(wanted)

    def length(self, slot: int) -> int:
        """How many tokens the slot holds."""
        self._check_slot(slot)
        return self._length

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the slot's first `length` tokens: what lies behind them is written over."""
        self._check_slot(slot)
        if not 0 <= length <= self._length:
            raise OptionError("length", length, f"0 to {self._length}, the tokens in slot {slot}")
        self._length = length

    def close(self) -> None:
        """Give back memory and threads."""
        self._bindings.clear()
        self._fixed.clear()
        self._session = None

    def _check(self, batch: Batch) -> None:
        """Refuse the whole batch before anything of it is run."""
        end = self._length
        for chunk in batch:
            self._check_slot(chunk.slot)
            end += len(chunk.tokens)
            if not chunk.tokens or not all(0 <= token < self.spec.vocab_size for token in chunk.tokens):
                raise OptionError(
                    "tokens", len(chunk.tokens), f"at least one id, each from 0 to {self.spec.vocab_size - 1}"
                )
        if end > self.cache.tokens:
            raise ContextOverflowError(end, self.cache.tokens)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.cache.slots:
            raise OptionError("slot", slot, f"0 to {self.cache.slots - 1}")

    def _run(self, session: ort.InferenceSession, chunk: Chunk) -> Logits:
        count = len(chunk.tokens)
        rows = {"none": 0, "last": 1, "all": count}[chunk.rows]
        binding = self._binding(session, count, max(rows, 1))  # not every operator takes no rows at all
        binding.ids[0, :] = chunk.tokens
        binding.positions[0, :] = np.arange(self._length, self._length + count)
        end = self._length + count
        self._scalars["past_length"][0] = end - 1  # GroupQueryAttention's seqlens_k counts from 0
        self._scalars["total_length"][0] = end
        self._scalars["new_tokens"][0] = count
        try:
            session.run_with_iobinding(binding.io)
        except _ORT_ERRORS as error:
            raise BackendError("cpu", f"ONNX Runtime failed: {error}") from error
        self._length = end
        return binding.logits[:rows]

    def _binding(self, session: ort.InferenceSession, count: int, rows: int) -> _Binding:
        """Bindings of the shape that every decode step has are kept; those of a prompt's chunks are not worth it."""
        key = (count, rows)
        if key in self._bindings:
            return self._bindings[key]
        binding = _Binding(session, count, rows, self.spec.vocab_size)
        for name, array in self._scalars.items():
            binding.io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, value in self._fixed.items():
            binding.io.bind_ortvalue_input(name, value)
            if name.startswith(("keys.", "values.")):
                binding.io.bind_ortvalue_output(f"new_{name}", value)
        if count == 1:
            self._bindings[key] = binding
        return binding

    def _fixed_buffers(self) -> dict[str, ort.OrtValue]:
        """RoPE tables and the KV cache, by the name of the graph's input."""
        spec, values = self.spec, {}
        for i, rope in enumerate(spec.ropes):
            for name, table in zip(("cos", "sin"), rope_tables(rope, self._capacity, self.cache.tokens), strict=True):
                values[f"{name}.{i}"] = ort.OrtValue.ortvalue_from_numpy(table)
        shape = (1, spec.kv_heads, self._capacity, spec.head_size)
        for i in range(len(spec.layers)):
            for name in ("keys", "values"):
                values[f"{name}.{i}"] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        return values


class _Binding:
    """The buffers of one shape of run."""

    def __init__(self, session: ort.InferenceSession, count: int, rows: int, vocab_size: int) -> None:
        self.io = session.io_binding()
        self.ids = np.zeros((1, count), np.int64)
        self.positions = np.zeros((1, count), np.int64)
        self.rows = np.arange(count - rows, count, dtype=np.int64)
        self.logits = np.empty((rows, vocab_size), np.float32)
        for name in ("ids", "positions", "rows"):
            self.io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(getattr(self, name)))
        self.io.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self.logits))


def _pieces(chunk: Chunk) -> list[Chunk]:
    """A chunk cut into runs of at most MAX_CHUNK_TOKENS."""
    cuts = range(0, len(chunk.tokens), MAX_CHUNK_TOKENS)
    pieces = [chunk.tokens[cut : cut + MAX_CHUNK_TOKENS] for cut in cuts]
    rows = ["none" if chunk.rows == "last" else chunk.rows] * (len(pieces) - 1) + [chunk.rows]
    return [Chunk(slot=chunk.slot, tokens=p, rows=r) for p, r in zip(pieces, rows, strict=True)]


def _session(model: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4  # what goes wrong comes as an exception
    options.add_session_config_entry("session.force_spinning_stop", "1")  # threads spin within a run, never between
    try:
        return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except _ORT_ERRORS as error:
        raise BackendError(
            "cpu", f"{model} cannot be loaded: {error}; remove its folder to have it compiled again"
        ) from error
