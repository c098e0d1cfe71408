"""What the numbers of an 8-bit KV cache stand for: a scale for each layer, head and channel, of keys and of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onhand.formats.spec import DecoderSpec, RopeSpec

F32 = npt.NDArray[np.float32]

LARGEST = 127

KEY_HEADROOM, VALUE_HEADROOM = 2.0, 2.0
"""How much larger than in calibration a number may be before it is clipped: docs/adr/0006 has what each costs."""

QUIETEST = 1 / 64
"""The least that a channel is taken to reach, as a share of its head's largest."""


@dataclass(frozen=True, slots=True)
class KvScales:
    """Steps of keys, as they are stored (rotated), and of values: (layers, kv_heads, head_size) each."""

    keys: F32
    values: F32


Stored = npt.NDArray[Any]
"""float32, or int8 where there are scales."""


def quantize(x: F32, scales: F32 | None) -> Stored:
    """Round x, (kv_heads, tokens, head_size), to steps of scales, (kv_heads, head_size), as GroupQueryAttention does.

    Without scales it is x itself, here and in `dequantize`.
    """
    if scales is None:
        return x
    steps = np.rint(x * (np.float32(1) / scales)[:, None])
    return np.clip(steps, -LARGEST - 1, LARGEST).astype(np.int8)


def dequantize(x: Stored, scales: F32 | None) -> F32:
    """The inverse of `quantize`, but for what was rounded away."""
    return x if scales is None else x * scales[:, None]


def scales_for(spec: DecoderSpec, keys: Sequence[F32], values: Sequence[F32]) -> KvScales:
    """Scales under which such keys (rotated) and values of each layer, (kv_heads, tokens, head_size), are not clipped.

    What rotates may reach, at another place, its pair's magnitude in either channel: that is what its scale allows for.
    """
    magnitudes = [_pair_magnitudes(layer, spec.layers[i].rope) for i, layer in enumerate(keys)]
    return KvScales(
        np.stack([_scales(layer, KEY_HEADROOM) for layer in magnitudes]),
        np.stack([_scales(layer, VALUE_HEADROOM) for layer in values]),
    )


def _scales(layer: F32, headroom: float) -> F32:
    reached = np.abs(layer).max(axis=1)
    loudest = reached.max(axis=1, keepdims=True)
    loudest[loudest == 0] = 1  # a head that is always zero: any scale will do, 0 would not
    scales: F32 = np.maximum(reached, QUIETEST * loudest) * np.float32(headroom / LARGEST)
    return scales


def _pair_magnitudes(keys: F32, rope: RopeSpec) -> F32:
    """The length of each rotated pair in place of both its values; what is not rotated stays."""
    n = rope.dimensions
    first, second = (slice(0, n, 2), slice(1, n, 2)) if rope.interleaved else (slice(0, n // 2), slice(n // 2, n))
    magnitudes = keys.copy()
    magnitudes[..., first] = magnitudes[..., second] = np.hypot(keys[..., first], keys[..., second])
    return magnitudes
