"""GGML block types as data, and their unpacking into integers, scales and offsets.

The layouts are those of ggml's `ggml-common.h`, little-endian. Arithmetic is in float32 and in ggml's order, so that
`dequantize` gives ggml's numbers to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class BlockType(Enum):
    """A way to store weights that can be read. id: ggml's number; weights and bytes: how many make one block."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    BF16 = (30, 1, 2)

    def __init__(self, type_id: int, weights: int, size: int) -> None:
        self.id = type_id
        self.weights = weights
        self.bytes = size

    @property
    def quantized(self) -> bool:
        """Whether `unpack` takes it: every type but the three of plain floats."""
        return self.weights > 1

    @staticmethod
    def from_id(type_id: int) -> BlockType | None:
        """The type of ggml's number, or None when it is not one that can be read."""
        return _BY_ID.get(type_id)


_BY_ID = {block_type.id: block_type for block_type in BlockType}

# Known and not read: activations of dot products (Q8_1, Q8_K), plain integers, codebooks, ternary and FP4.
# Numbers 4, 5, 31 to 33 and 36 to 38 belonged to types that ggml has removed.
_UNREADABLE = {
    4: "Q4_2 (removed from ggml)", 5: "Q4_3 (removed from ggml)", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS",
    18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4 (removed from ggml)", 32: "Q4_0_4_8 (removed from ggml)",
    33: "Q4_0_8_8 (removed from ggml)", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4 (removed from ggml)",
    37: "IQ4_NL_4_8 (removed from ggml)", 38: "IQ4_NL_8_8 (removed from ggml)", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """How to call ggml's type of that number in a message, readable or not."""
    readable = BlockType.from_id(type_id)
    return readable.name if readable else _UNREADABLE.get(type_id, f"type {type_id}")


@dataclass(frozen=True, slots=True)
class AffineBlocks:
    """Quantized rows in the one form that every block type has: w = scales * (codes - zero) + offsets.

    bits: what a code needs, so codes < 2**bits. block_size: weights that share a scale.
    codes: (rows, blocks, block_size) uint8. zero: the code of 0, the same in every block.
    scales: (rows, blocks) float32, of either sign. offsets: (rows, blocks) float32, or None for all 0.
    Scales and offsets are as stored: those of a damaged file may be infinite or NaN.
    """

    bits: int
    block_size: int
    codes: Bytes
    zero: int
    scales: Floats
    offsets: Floats | None = None

    def dequantize(self) -> Floats:
        """The weights, (rows, columns) float32."""
        weights = self.codes.astype(np.float32)
        if self.zero:
            weights -= np.float32(self.zero)
        with np.errstate(all="ignore"):  # a damaged file's infinities are the caller's to find
            weights *= self.scales[..., None]
            if self.offsets is not None:
                weights += self.offsets[..., None]
        return weights.reshape(len(weights), -1)


def unpack(block_type: BlockType, raw: Bytes) -> AffineBlocks:
    """Split quantized rows into codes, scales and offsets.

    raw: (rows, row_bytes) uint8, each row whole blocks. The codes take one byte a weight: unpack a large tensor some
    rows at a time. Raises ValueError for a type that is not quantized, and for a row that is not whole blocks.
    """
    if block_type not in _LAYOUTS:
        raise ValueError(f"{block_type.name} is not quantized: dequantize it")
    layout, take_apart = _LAYOUTS[block_type]
    with np.errstate(all="ignore"):  # a damaged file's infinities are the caller's to find
        return take_apart(raw.view(layout))


def dequantize(block_type: BlockType, raw: Bytes) -> Floats:
    """The weights of rows of any readable type, (rows, columns) float32.

    raw: (rows, row_bytes) uint8. Raises ValueError for a row that is not whole blocks.
    """
    match block_type:
        case BlockType.F32:
            return raw.view("<f4").astype(np.float32)
        case BlockType.F16:
            with np.errstate(invalid="ignore"):  # a signalling NaN of a damaged file is the caller's to find
                return raw.view("<f2").astype(np.float32)
        case BlockType.BF16:
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case _:
            return unpack(block_type, raw).dequantize()


def _float(halves: npt.NDArray[np.float16]) -> Floats:
    return halves.astype(np.float32)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Bytes in runs: the low halves of a run come first, then its high halves.

    packed: (rows, blocks, n) uint8 with n a multiple of run -> (rows, blocks, 2 * n).
    """
    rows, blocks, size = packed.shape
    runs = packed.reshape(rows, blocks, size // run, run)
    codes = np.empty((rows, blocks, size // run, 2, run), np.uint8)
    np.bitwise_and(runs, 15, out=codes[..., 0, :])
    np.right_shift(runs, 4, out=codes[..., 1, :])
    return codes.reshape(rows, blocks, 2 * size)


def _planes(packed: Bytes, bits: int) -> Bytes:
    """Bytes whose lowest bits belong to the first run of weights, the next bits to the second run, and so on.

    packed: (..., run) uint8 -> (..., 8 // bits, run), each value below 2**bits.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    planes = packed[..., None, :] >> shifts
    planes &= np.uint8(2**bits - 1)
    return planes


def _q4(block: npt.NDArray[np.void]) -> AffineBlocks:
    codes = _nibbles(block["low"], 16)
    if "offset" in (block.dtype.names or ()):
        return AffineBlocks(4, 32, codes, 0, _float(block["scale"]), _float(block["offset"]))
    return AffineBlocks(4, 32, codes, 8, _float(block["scale"]))


def _q5(block: npt.NDArray[np.void]) -> AffineBlocks:
    codes = np.unpackbits(block["high"], axis=-1, bitorder="little")
    codes <<= 4
    codes |= _nibbles(block["low"], 16)
    if "offset" in (block.dtype.names or ()):
        return AffineBlocks(5, 32, codes, 0, _float(block["scale"]), _float(block["offset"]))
    return AffineBlocks(5, 32, codes, 16, _float(block["scale"]))


def _q8_0(block: npt.NDArray[np.void]) -> AffineBlocks:
    return AffineBlocks(8, 32, block["codes"] ^ np.uint8(128), 128, _float(block["scale"]))


def _superblocks(bits: int, codes: Bytes, zero: int, scales: Floats, offsets: Floats | None = None) -> AffineBlocks:
    """Join superblocks of 256 weights. codes: 256, scales and offsets: 8 or 16 for each (rows, superblock)."""
    rows, _, groups = scales.shape
    size = 256 // groups
    joined = None if offsets is None else offsets.reshape(rows, -1)
    return AffineBlocks(bits, size, codes.reshape(rows, -1, size), zero, scales.reshape(rows, -1), joined)


def _q2_k(block: npt.NDArray[np.void]) -> AffineBlocks:
    rows, blocks = block.shape
    codes = _planes(block["codes"].reshape(rows, blocks, 2, 32), 2)
    scales = _float(block["scale"])[..., None] * (block["scales"] & 15)
    offsets = -_float(block["offset"])[..., None] * (block["scales"] >> 4)
    return _superblocks(2, codes, 0, scales, offsets)


def _q3_k(block: npt.NDArray[np.void]) -> AffineBlocks:
    rows, blocks = block.shape
    codes = _planes(block["high"], 1)
    codes <<= 2
    codes |= _planes(block["low"].reshape(rows, blocks, 2, 32), 2).reshape(codes.shape)
    steps = _planes(block["scales"][..., 8:], 2).reshape(rows, blocks, 16) << 4
    steps |= _nibbles(block["scales"][..., :8], 8)
    return _superblocks(3, codes, 4, _float(block["scale"])[..., None] * (steps.astype(np.float32) - 32))


def _k_scales(block: npt.NDArray[np.void]) -> tuple[Floats, Floats]:
    """Scales and offsets of Q4_K and Q5_K, (rows, superblocks, 8) each, from twelve bytes of 6-bit numbers.

    Numbers 0 to 3 are whole in bytes 0-3 (scales) and 4-7 (offsets), whose top two bits are the top bits of numbers
    4 to 7; their low halves share bytes 8-11.
    """
    first, second, low = (block["scales"][..., start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([first & 63, (low & 15) | (first >> 6 << 4)], axis=-1)
    offsets = np.concatenate([second & 63, (low >> 4) | (second >> 6 << 4)], axis=-1)
    return _float(block["scale"])[..., None] * scales, -_float(block["offset"])[..., None] * offsets


def _q4_k(block: npt.NDArray[np.void]) -> AffineBlocks:
    return _superblocks(4, _nibbles(block["low"], 32), 0, *_k_scales(block))


def _q5_k(block: npt.NDArray[np.void]) -> AffineBlocks:
    codes = _planes(block["high"], 1)
    codes <<= 4
    codes |= _nibbles(block["low"], 32).reshape(codes.shape)
    return _superblocks(5, codes, 0, *_k_scales(block))


def _q6_k(block: npt.NDArray[np.void]) -> AffineBlocks:
    rows, blocks = block.shape
    codes = _planes(block["high"].reshape(rows, blocks, 2, 32), 2)
    codes <<= 4
    codes |= _nibbles(block["low"], 64).reshape(codes.shape)
    return _superblocks(6, codes, 32, _float(block["scale"])[..., None] * block["scales"])


_SCALE = ("scale", "<f2")
_OFFSET = ("offset", "<f2")
_SIX_BITS = ("scales", "u1", 12)

_LAYOUTS: dict[BlockType, tuple[np.dtype[np.void], Callable[[npt.NDArray[np.void]], AffineBlocks]]] = {
    BlockType.Q4_0: (np.dtype([_SCALE, ("low", "u1", 16)]), _q4),
    BlockType.Q4_1: (np.dtype([_SCALE, _OFFSET, ("low", "u1", 16)]), _q4),
    BlockType.Q5_0: (np.dtype([_SCALE, ("high", "u1", 4), ("low", "u1", 16)]), _q5),
    BlockType.Q5_1: (np.dtype([_SCALE, _OFFSET, ("high", "u1", 4), ("low", "u1", 16)]), _q5),
    BlockType.Q8_0: (np.dtype([_SCALE, ("codes", "u1", 32)]), _q8_0),
    BlockType.Q2_K: (np.dtype([("scales", "u1", 16), ("codes", "u1", 64), _SCALE, _OFFSET]), _q2_k),
    BlockType.Q3_K: (np.dtype([("high", "u1", 32), ("low", "u1", 64), _SIX_BITS, _SCALE]), _q3_k),
    BlockType.Q4_K: (np.dtype([_SCALE, _OFFSET, _SIX_BITS, ("low", "u1", 128)]), _q4_k),
    BlockType.Q5_K: (np.dtype([_SCALE, _OFFSET, _SIX_BITS, ("high", "u1", 32), ("low", "u1", 128)]), _q5_k),
    BlockType.Q6_K: (np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _SCALE]), _q6_k),
}
