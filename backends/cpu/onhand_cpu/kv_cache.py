"""The keys and values of what a decoder holds, in the buffers that its graph writes in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from onhand.backends import LayerKv
from onhand.formats.spec import DecoderSpec, inverse_frequencies
from onhand_cpu.kv_scales import KvScales, Stored, dequantize, quantize
from onhand_cpu.rotation import BLOCK_TOKENS, Rotation

F32 = npt.NDArray[np.float32]


class KvCache:
    """Keys and values, (slots, kv_heads, capacity, head_size) for each layer, and how many tokens are in use.

    capacity: places of each slot. context_tokens: by which LongRoPE chooses its factors. scales: of int8 numbers; None
    keeps float32. The operating system gives the memory as it fills. A token's key is stored rotated to its place in
    the slot, so `evict` rotates what it moves.
    """

    def __init__(
        self, spec: DecoderSpec, *, slots: int, capacity: int, context_tokens: int, scales: KvScales | None = None
    ) -> None:
        self.lengths = [0] * slots
        self.capacity = capacity
        shape = (slots, spec.kv_heads, capacity, spec.head_size)
        dtype = np.float32 if scales is None else np.int8
        self._keys: list[Stored] = [np.zeros(shape, dtype) for _ in spec.layers]
        self._values: list[Stored] = [np.zeros(shape, dtype) for _ in spec.layers]
        self._key_scales = [None] * len(spec.layers) if scales is None else list(scales.keys)
        self._value_scales = [None] * len(spec.layers) if scales is None else list(scales.values)
        self._ropes = [layer.rope for layer in spec.layers]
        self._frequencies = {rope: inverse_frequencies(rope, context_tokens)[0] for rope in spec.ropes}

    def buffers(self, first: int, slots: int) -> Iterator[tuple[str, Stored]]:
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
        """What the slot holds, layer by layer; views where that is float32."""
        end = self.lengths[slot]
        layers = zip(tuple(self._keys), self._key_scales, tuple(self._values), self._value_scales, strict=True)
        return (
            (dequantize(keys[slot, :, :end], key_scales), dequantize(values[slot, :, :end], value_scales))
            for keys, key_scales, values, value_scales in layers
        )

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        """Make the slot hold these tokens, or nothing if `layers` raises."""
        self.lengths[slot] = 0
        for i, (keys, values) in enumerate(layers):
            self._keys[i][slot, :, :tokens] = quantize(keys, self._key_scales[i])
            self._values[i][slot, :, :tokens] = quantize(values, self._value_scales[i])
        self.lengths[slot] = tokens

    def evict(self, slot: int, first: int, count: int) -> None:
        """Take `count` tokens out from place `first` on; what lies behind moves up, its keys rotated back.

        Head by head: what is moved of one is in one piece.
        """
        end = self.lengths[slot]
        rotations = {
            rope: Rotation(-count * angles, interleaved=rope.interleaved) for rope, angles in self._frequencies.items()
        }
        layers = zip(self._keys, self._key_scales, self._values, self._ropes, strict=True)
        for keys, scales, values, rope in layers:
            for head in range(keys.shape[1]):
                _move(values[slot, head, first:end], count)
                steps = None if scales is None else scales[head : head + 1]
                _move_rotated(keys[slot, head, first:end], count, rotations[rope], steps)
        self.lengths[slot] = end - count


def _move(places: Stored, count: int) -> None:
    """Move all behind the first `count` places, (places, head_size), up by these."""
    flat, gap = places.reshape(-1), count * places.shape[1]
    flat[:-gap] = flat[gap:]  # where there is but one dimension, numpy needs no copy to move what overlaps


def _move_rotated(places: Stored, count: int, rotation: Rotation, steps: F32 | None) -> None:
    """Move and rotate keys, (places, head_size). steps: their scales, (1, head_size)."""
    for start in range(0, len(places) - count, BLOCK_TOKENS):
        stop = min(start + BLOCK_TOKENS, len(places) - count)
        source, target = places[start + count : stop + count], places[start:stop]
        if steps is None:
            rotation.turn(source, target)
        else:
            moved = dequantize(source[None], steps)
            rotation.turn(moved[0], moved[0])
            target[:] = quantize(moved, steps)[0]
