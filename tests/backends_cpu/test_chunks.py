"""ADR 5: a token's logits are the same bits in a chunk of any size, from any place on, as decoded alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from onhand.backends import Chunk
from onhand.options import CacheOptions, DeviceOptions
from onhand_cpu import backend
from support.packages import tiny_package
from support.tiny import VOCAB

CONTEXT = 530
SIZES = [size + more for size in (2, 16, 32, 64, 96, 128, 160, 192, 256, 384, 512) for more in (0, 1)]
"""Attention's blocks of queries have twice the head's size, or what L2 holds: the last is alone where one is more."""


@pytest.mark.parametrize("kv_bits", [8, 32])
@pytest.mark.parametrize("head_size", [16, 64, 96, 128, 256])
def test_logits_are_the_same_bits_in_chunks_of_any_size(
    head_size: int, kv_bits: Literal[8, 32], tmp_path: Path
) -> None:
    package = tiny_package(tmp_path, head_size=head_size, extra={"llama.context_length": CONTEXT})
    backend.prepare(package)
    runtime = backend.load(package, CacheOptions(context_tokens=CONTEXT, kv_bits=kv_bits), DeviceOptions(threads=2))
    numbers = np.random.default_rng(5)
    tokens = numbers.integers(0, VOCAB, CONTEXT).tolist()
    alone = np.stack([runtime.forward([Chunk(slot=0, tokens=[token])])[0].copy() for token in tokens])
    held = [(keys.copy(), values.copy()) for keys, values in runtime.export(0)]
    for size in SIZES:
        for start in {0, int(numbers.integers(0, CONTEXT - size))}:
            runtime.restore(0, ((keys[:, :start], values[:, :start]) for keys, values in held), start)
            found = runtime.forward([Chunk(slot=0, tokens=tokens[start : start + size], rows="all")])
            different = np.flatnonzero((found != alone[start : start + size]).any(axis=1))
            assert not len(different), f"{size} tokens from {start} on: rows {different.tolist()}"
    runtime.close()
