"""Quantization blocks keep their values on the way into MatMulNBits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onhand.formats.blocks import AffineBlocks, BlockType, unpack
from onhand_cpu.nbits import carry, dequantize, layout_of
from support.gguf_writer import random_blocks

SYMMETRIC = [BlockType.Q4_0, BlockType.Q5_0, BlockType.Q8_0, BlockType.Q3_K, BlockType.Q6_K]
AFFINE = [BlockType.Q4_1, BlockType.Q5_1, BlockType.Q2_K, BlockType.Q4_K, BlockType.Q5_K]


def blocks_of(block_type: BlockType, columns: int, seed: int = 0) -> AffineBlocks:
    rng = np.random.default_rng(seed)
    return unpack(block_type, random_blocks(block_type, 24, columns, rng))


@pytest.mark.parametrize("block_type", SYMMETRIC, ids=lambda t: t.name)
def test_symmetric_types_are_carried_over_exactly(block_type: BlockType) -> None:
    blocks = blocks_of(block_type, 768)
    layout = layout_of(block_type, 768)
    assert layout is not None
    assert layout.copies == 0
    np.testing.assert_array_equal(dequantize(carry(blocks, layout), layout), blocks.dequantize())


@pytest.mark.parametrize("columns", [64, 256, 576, 768, 1536, 3072])
@pytest.mark.parametrize("block_type", AFFINE, ids=lambda t: t.name)
def test_affine_types_keep_their_offsets_within_a_hundredth_of_a_step(block_type: BlockType, columns: int) -> None:
    columns = -(-columns // block_type.weights) * block_type.weights
    blocks = blocks_of(block_type, columns)
    layout = layout_of(block_type, columns)
    assert layout is not None
    assert layout.copies > 0
    error = np.abs(dequantize(carry(blocks, layout), layout) - blocks.dequantize())
    step = np.abs(blocks.scales).max(axis=1)
    assert float((error.max(axis=1) / step).max()) < 0.01


def test_without_the_extra_columns_the_error_would_be_half_a_step() -> None:
    """The control: whole zero points alone are not good enough."""
    blocks = blocks_of(BlockType.Q4_1, 576)
    zero = np.rint(-blocks.offsets / blocks.scales)  # type: ignore[operator]
    rounded = AffineBlocks(blocks.bits, blocks.block_size, blocks.codes, 0, blocks.scales, -zero * blocks.scales)
    error = np.abs(rounded.dequantize() - blocks.dequantize()).reshape(24, 18, 32) / blocks.scales[:, :, None]
    assert error.max() > 0.3


@settings(max_examples=60, deadline=None)
@given(
    means=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    shift=st.floats(-40, 40, allow_nan=False),
    zero_share=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_any_offsets_and_empty_scales_are_carried_over(means: int, seed: int, shift: float, zero_share: float) -> None:
    """Offsets far outside of the codes' range and blocks whose scale is 0 lose no more than their size allows."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (3, means, 32), np.uint8)
    scales = rng.uniform(0.01, 1, (3, means)).astype(np.float32)
    scales[rng.random((3, means)) < zero_share] = 0
    offsets = (rng.normal(0, 2, (3, means)) + shift).astype(np.float32)
    blocks = AffineBlocks(4, 32, codes, 0, scales, offsets)
    layout = layout_of(BlockType.Q4_1, means * 32)
    assert layout is not None
    error = np.abs(dequantize(carry(blocks, layout), layout) - blocks.dequantize())
    zero = np.clip(np.rint(np.divide(-offsets, scales, out=np.zeros_like(scales), where=scales > 0)), 0, 15)
    left = np.abs(offsets + scales * zero).max(axis=1, keepdims=True)
    assert (error <= left / 400 + 1e-5 * (1 + abs(shift))).all()


def test_float_types_have_no_layout() -> None:
    assert layout_of(BlockType.F16, 64) is None
