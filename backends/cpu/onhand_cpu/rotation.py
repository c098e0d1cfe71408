"""Turning keys that are rotated already: what RoPE does to a token that moves to another place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

BLOCK_TOKENS = 256
"""Most tokens that are turned at a time, so that what is between stays in the processor's cache."""


class Rotation:
    """Turns keys of one head, (tokens, head_size), by one angle for each pair of values.

    angles: (pairs,) radians, of the first 2 * pairs values. interleaved: pairs are (0, 1), (2, 3), ... instead of
    (0, pairs), (1, pairs + 1), ...

    Tables have a row for each token of a block: numpy takes several times as long where its innermost loop is only as
    long as a head.
    """

    def __init__(self, angles: npt.NDArray[np.float64], *, interleaved: bool) -> None:
        self._rotated = 2 * len(angles)
        self._interleaved = interleaved
        cos, sin = np.cos(angles), np.sin(angles)
        rows = (BLOCK_TOKENS, 1)
        self._turns = np.tile((cos + 1j * sin).astype(np.complex64), rows)
        self._cos = np.tile(np.concatenate([cos, cos]).astype(np.float32), rows)
        self._sin = np.tile(np.concatenate([sin, -sin]).astype(np.float32), rows)
        self._crossing = np.empty_like(self._sin)

    def turn(self, keys: F32, target: F32) -> None:
        """Write what is turned to the target, which may be the keys themselves or overlap them. Both: a block."""
        tokens, rotated = len(keys), self._rotated
        target[:, rotated:] = keys[:, rotated:]
        keys, target = keys[:, :rotated], target[:, :rotated]
        if self._interleaved:
            np.multiply(keys.view(np.complex64), self._turns[:tokens], out=target.view(np.complex64))
            return
        crossing = np.multiply(keys, self._sin[:tokens], out=self._crossing[:tokens])
        np.multiply(keys, self._cos[:tokens], out=target)
        halves = (tokens, 2, rotated // 2)
        target = target.reshape(halves)  # a view, also of a part of each head
        target += crossing.reshape(halves)[:, ::-1]
