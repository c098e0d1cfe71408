"""The keys and values of what a decoder holds, in the buffers that its graph writes in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from onhand.backends import LayerKv
from onhand.formats.spec import DecoderSpec, inverse_frequencies

F32 = npt.NDArray[np.float32]

ROTATED_TOKENS = 256
"""How many tokens' keys are rotated at a time, so that what is between stays in the processor's cache."""


class KvCache:
    """Keys and values, (slots, kv_heads, capacity, head_size) float32 for each layer, and how many tokens are in use.

    capacity: places of each slot. context_tokens: by which LongRoPE chooses its factors. The operating system gives the
    memory as it fills. A token's key is stored rotated to its place in the slot, so `evict` rotates what it moves.
    """

    def __init__(self, spec: DecoderSpec, *, slots: int, capacity: int, context_tokens: int) -> None:
        self.lengths = [0] * slots
        self.capacity = capacity
        shape = (slots, spec.kv_heads, capacity, spec.head_size)
        self._keys = [np.zeros(shape, np.float32) for _ in spec.layers]
        self._values = [np.zeros(shape, np.float32) for _ in spec.layers]
        self._ropes = [layer.rope for layer in spec.layers]
        self._frequencies = {rope: inverse_frequencies(rope, context_tokens)[0] for rope in spec.ropes}

    def buffers(self, first: int, slots: int) -> Iterator[tuple[str, F32]]:
        """The graph's name for each buffer, and the view of it that holds those slots."""
        for kind, layers in (("keys", self._keys), ("values", self._values)):
            for i, layer in enumerate(layers):
                yield f"{kind}.{i}", layer[first : first + slots]

    def release(self) -> None:
        """Give back the memory; no slot holds anything any more."""
        self._keys.clear()
        self._values.clear()
        self.lengths = [0] * len(self.lengths)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the target hold the source's first `length` tokens and nothing else."""
        for layer in (*self._keys, *self._values):
            layer[target, :, :length] = layer[source, :, :length]
        self.lengths[target] = length

    def export(self, slot: int) -> Iterator[LayerKv]:
        """Views of what the slot holds, layer by layer."""
        end = self.lengths[slot]
        layers = zip(tuple(self._keys), tuple(self._values), strict=True)
        return ((keys[slot, :, :end], values[slot, :, :end]) for keys, values in layers)

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        """Make the slot hold these tokens, or nothing if `layers` raises."""
        self.lengths[slot] = 0
        for i, (keys, values) in enumerate(layers):
            self._keys[i][slot, :, :tokens] = keys
            self._values[i][slot, :, :tokens] = values
        self.lengths[slot] = tokens

    def evict(self, slot: int, first: int, count: int) -> None:
        """Take `count` tokens out from place `first` on; what lies behind moves up, its keys rotated back."""
        end = self.lengths[slot]
        turns = {rope: _turn(-count * angles) for rope, angles in self._frequencies.items()}
        for keys, values, rope in zip(self._keys, self._values, self._ropes, strict=True):
            values[slot, :, first : end - count] = values[slot, :, first + count : end]  # numpy buffers what overlaps
            for start in range(first, end - count, ROTATED_TOKENS):
                stop = min(start + ROTATED_TOKENS, end - count)
                moved = keys[slot, :, start + count : stop + count].copy()
                _rotate(moved, *turns[rope], interleaved=rope.interleaved)
                keys[slot, :, start:stop] = moved
        self.lengths[slot] = end - count


def _turn(angles: npt.NDArray[np.float64]) -> tuple[F32, F32]:
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(keys: F32, cos: F32, sin: F32, *, interleaved: bool) -> None:
    """Rotate in place: keys (heads, tokens, head_size), of which the first 2 * len(cos) values are in pairs."""
    half = len(cos)
    if interleaved:
        a, b = keys[..., 0 : 2 * half : 2], keys[..., 1 : 2 * half : 2]
    else:
        a, b = keys[..., :half], keys[..., half : 2 * half]
    turned = a * cos - b * sin
    b *= cos
    b += a * sin
    a[...] = turned
