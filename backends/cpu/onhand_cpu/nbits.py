"""Carries GGUF's quantization blocks over to the weights of ONNX Runtime's MatMulNBits, without quantizing again.

MatMulNBits computes y = x W^T with w = scale * (code - zero), whole zero points, codes of 4 or 8 bits. That holds the
symmetric types exactly. The affine ones have w = scale * code + offset with any offset; MatMulNBits takes float zero
points too, but then leaves its int8 path, which is 80 times slower at decode. So an affine block gets the nearest whole
zero point, and what remains of its offset, at most half a step, is carried by extra columns: their input is the mean of
the block's inputs (see `Graph.with_block_means`), so that

    sum_i x_i (scale (code_i - zero) + rest) = sum_i x_i scale (code_i - zero) + (block_size rest) mean(x)

The extra columns are quantized like all the others, in a few passes of which each takes up what the one before left.
How many passes are worth their bytes was measured: docs/adr/0003.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from onhand.formats.blocks import AffineBlocks, BlockType

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NBitsLayout:
    """How MatMulNBits stores a matrix of so many columns.

    bits: 4 or 8 per code. block_size: columns that share a scale. copies: how often the column of block means is
    appended; 0 for symmetric types, whose zero point is the middle of the codes.
    """

    bits: int
    block_size: int
    columns: int
    copies: int

    @property
    def own_blocks(self) -> int:
        """Blocks of the matrix itself."""
        return self.columns // self.block_size

    @property
    def inner(self) -> int:
        """MatMulNBits' K: the columns with the extra ones."""
        return self.columns + self.copies * self.own_blocks

    @property
    def blocks(self) -> int:
        """Blocks in all, the last one perhaps not full."""
        return -(-self.inner // self.block_size)

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one block."""
        return self.block_size * self.bits // 8

    @property
    def zero_bytes(self) -> int:
        """Bytes of the zero points of one row; none for symmetric types."""
        return -(-self.blocks * self.bits // 8) if self.copies else 0


# type -> (bits, block size, affine). Q2_K has 2 bits, but MatMulNBits is slow at 2 bits in blocks of 16.
_CARRIERS = {
    BlockType.Q4_0: (4, 32, False),
    BlockType.Q4_1: (4, 32, True),
    BlockType.Q5_0: (8, 32, False),
    BlockType.Q5_1: (8, 32, True),
    BlockType.Q8_0: (8, 32, False),
    BlockType.Q2_K: (4, 16, True),
    BlockType.Q3_K: (4, 16, False),
    BlockType.Q4_K: (4, 32, True),
    BlockType.Q5_K: (8, 32, True),
    BlockType.Q6_K: (8, 16, False),
}

_PASSES = {4: 3, 8: 2}


@cache
def layout_of(block_type: BlockType, columns: int) -> NBitsLayout | None:
    """The layout for a matrix of that type; None for float types, which stay float."""
    carrier = _CARRIERS.get(block_type)
    if carrier is None:
        return None
    bits, block_size, affine = carrier
    copies = _copies(columns // block_size, block_size, bits) if affine else 0
    return NBitsLayout(bits=bits, block_size=block_size, columns=columns, copies=copies)


def _copies(means: int, block_size: int, bits: int) -> int:
    """The fewest copies of the means that let each of them take part in every pass.

    Columns of one MatMulNBits block share a scale, which must suit the coarsest of them; so a block makes its means
    finer by one pass only where none of them is still at an earlier one.
    """
    copies = 1
    while min(_passes_done(copies, means, block_size)) < _PASSES[bits]:
        copies += 1
    return copies


def _passes_done(copies: int, means: int, block_size: int) -> list[int]:
    done = [0] * means
    for first in range(0, copies * means, block_size):
        owners = {column % means for column in range(first, min(first + block_size, copies * means))}
        coarsest = min(done[mean] for mean in owners)
        for mean in owners:
            done[mean] = max(done[mean], coarsest + 1)
    return done


@dataclass(frozen=True, slots=True)
class NBitsRows:
    """Some rows of a matrix as MatMulNBits stores them.

    codes: (rows, blocks, code_bytes) uint8; scales: (rows, blocks) float32; zeros: (rows, zero_bytes) uint8.
    """

    codes: U8
    scales: F32
    zeros: U8


def carry(blocks: AffineBlocks, layout: NBitsLayout) -> NBitsRows:
    """Some rows of a matrix, carried over into a layout that `layout_of` gave for their type."""
    rows = blocks.codes.shape[0]
    middle = 1 << (layout.bits - 1)
    codes = np.full((rows, layout.blocks * layout.block_size), middle, np.uint8)
    scales = np.zeros((rows, layout.blocks), np.float32)
    scales[:, : layout.own_blocks] = blocks.scales
    own = codes[:, : layout.columns].reshape(blocks.codes.shape)
    if blocks.offsets is None:
        np.add(blocks.codes, np.uint8((middle - blocks.zero) % 256), out=own)
        return NBitsRows(_pack(codes, layout), scales, np.empty((rows, 0), np.uint8))
    own[...] = blocks.codes
    zeros = np.full((rows, layout.blocks), middle, np.uint8)
    zeros[:, : layout.own_blocks] = zero = _nearest_zero(blocks.scales, blocks.offsets, layout.bits)
    rest = (blocks.offsets + blocks.scales * zero) * np.float32(layout.block_size)
    _spread(rest, codes, scales, layout)
    return NBitsRows(_pack(codes, layout), scales, _pack_nibbles(zeros) if layout.bits == 4 else zeros)


def _nearest_zero(scales: F32, offsets: F32, bits: int) -> F32:
    """The whole zero point nearest to -offset / scale, (rows, blocks), 0 where the scale is 0."""
    quotient = np.divide(-offsets, scales, out=np.zeros_like(offsets), where=scales != 0)
    return np.clip(np.rint(quotient), 0, (1 << bits) - 1)


def _spread(rest: F32, codes: U8, scales: F32, layout: NBitsLayout) -> None:
    """Write what each block's offset lacks, (rows, own_blocks), into the extra columns, pass after pass."""
    left = rest.copy()
    middle = 1 << (layout.bits - 1)
    size = layout.block_size
    for block in range(layout.own_blocks, layout.blocks):
        first = block * size
        width = min(size, layout.inner - first)
        owners = (np.arange(first, first + width) - layout.columns) % layout.own_blocks
        owners = owners[: layout.own_blocks]  # a mean that stands twice in a block is taken up once
        part = left[:, owners]
        scale = np.abs(part).max(axis=1) / np.float32(middle - 0.5)
        steps = np.divide(part, scale[:, None], out=np.zeros_like(part), where=scale[:, None] != 0)
        steps = np.clip(np.rint(steps), -middle, middle - 1)
        scales[:, block] = scale
        codes[:, first : first + owners.size] = (steps + middle).astype(np.uint8)
        left[:, owners] -= steps * scale[:, None]


def _pack(codes: U8, layout: NBitsLayout) -> U8:
    packed = _pack_nibbles(codes) if layout.bits == 4 else codes
    return packed.reshape(codes.shape[0], layout.blocks, layout.code_bytes)


def _pack_nibbles(values: U8) -> U8:
    """(rows, n) of 0..15 -> (rows, ceil(n / 2)), the first of each pair in the low half."""
    if values.shape[1] % 2:
        values = np.pad(values, ((0, 0), (0, 1)))
    return values[:, 0::2] | (values[:, 1::2] << np.uint8(4))


def dequantize(rows: NBitsRows, layout: NBitsLayout) -> F32:
    """The weights that MatMulNBits works with, extra columns folded back: (rows, columns) float32."""
    codes, zeros = rows.codes.reshape(rows.codes.shape[0], -1), rows.zeros
    if layout.bits == 4:
        codes, zeros = _unpack_nibbles(codes), _unpack_nibbles(zeros)
    zero = zeros[:, : layout.blocks, None].astype(np.float32) if layout.copies else np.float32(1 << (layout.bits - 1))
    shape = (codes.shape[0], layout.blocks, layout.block_size)
    values = ((codes.reshape(shape) - zero) * rows.scales[:, :, None]).reshape(codes.shape[0], -1)
    own = values[:, : layout.columns].reshape(-1, layout.own_blocks, layout.block_size)
    if layout.copies:
        extra = values[:, layout.columns : layout.inner].reshape(-1, layout.copies, layout.own_blocks)
        own = own + (extra.sum(axis=1) / layout.block_size)[:, :, None]
    return own.reshape(codes.shape[0], layout.columns).astype(np.float32)


def _unpack_nibbles(packed: U8) -> U8:
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(packed.shape[0], -1)
