"""Block types against decoders that follow ggml's definition weight by weight, slowly, in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from onhand.formats.blocks import BlockType, dequantize, type_name, unpack
from support.gguf_writer import random_blocks

F = np.float32


def half(block: bytes, at: int) -> np.float32:
    return F(struct.unpack_from("<e", block, at)[0])


def f32(block: bytes) -> Iterator[np.float32]:
    yield F(struct.unpack("<f", block)[0])


def f16(block: bytes) -> Iterator[np.float32]:
    yield half(block, 0)


def bf16(block: bytes) -> Iterator[np.float32]:
    yield F(struct.unpack("<f", b"\0\0" + block)[0])


def q4_0(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        code = block[2 + i] & 15 if i < 16 else block[2 + i - 16] >> 4
        yield F(code - 8) * half(block, 0)


def q4_1(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        code = block[4 + i] & 15 if i < 16 else block[4 + i - 16] >> 4
        yield F(code) * half(block, 0) + half(block, 2)


def fifth_bit(block: bytes, at: int, i: int) -> int:
    (bits,) = struct.unpack_from("<I", block, at)
    return int(bits >> i & 1) << 4


def q5_0(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        code = block[6 + i] & 15 if i < 16 else block[6 + i - 16] >> 4
        yield F((code | fifth_bit(block, 2, i)) - 16) * half(block, 0)


def q5_1(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        code = block[8 + i] & 15 if i < 16 else block[8 + i - 16] >> 4
        yield F(code | fifth_bit(block, 4, i)) * half(block, 0) + half(block, 2)


def q8_0(block: bytes) -> Iterator[np.float32]:
    for code in struct.unpack_from("32b", block, 2):
        yield F(code) * half(block, 0)


def q2_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        small = block[i // 16]
        code = block[16 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        yield half(block, 80) * F(small & 15) * F(code) - half(block, 82) * F(small >> 4)


def q3_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        group = i // 16
        low = block[96 + group % 8] >> (4 if group >= 8 else 0) & 15
        small = low | (block[104 + group % 4] >> (group // 4 * 2) & 3) << 4
        code = block[32 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        below = 0 if block[i % 32] >> (i // 32) & 1 else 4
        yield half(block, 108) * F(small - 32) * F(code - below)


def small_scale_and_offset(packed: bytes, group: int) -> tuple[int, int]:
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def q4_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        scale, offset = small_scale_and_offset(block[4:16], i // 32)
        code = block[16 + i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15
        yield half(block, 0) * F(scale) * F(code) - half(block, 2) * F(offset)


def q5_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        scale, offset = small_scale_and_offset(block[4:16], i // 32)
        code = block[48 + i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15
        code |= (block[16 + i % 32] >> (i // 32) & 1) << 4
        yield half(block, 0) * F(scale) * F(code) - half(block, 2) * F(offset)


def q6_k(block: bytes) -> Iterator[np.float32]:
    smalls = struct.unpack_from("16b", block, 192)
    for i in range(256):
        low = block[i // 128 * 64 + i % 64] >> (i % 128 // 64 * 4) & 15
        high = block[128 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        yield half(block, 208) * F(smalls[i // 16]) * F((low | high << 4) - 32)


DECODERS: dict[BlockType, Callable[[bytes], Iterator[np.float32]]] = {
    BlockType.F32: f32,
    BlockType.F16: f16,
    BlockType.BF16: bf16,
    BlockType.Q4_0: q4_0,
    BlockType.Q4_1: q4_1,
    BlockType.Q5_0: q5_0,
    BlockType.Q5_1: q5_1,
    BlockType.Q8_0: q8_0,
    BlockType.Q2_K: q2_k,
    BlockType.Q3_K: q3_k,
    BlockType.Q4_K: q4_k,
    BlockType.Q5_K: q5_k,
    BlockType.Q6_K: q6_k,
}
QUANTIZED = [block_type for block_type in BlockType if block_type.quantized]


def random_rows(block_type: BlockType, rows: int = 3, blocks: int = 2) -> npt.NDArray[np.uint8]:
    return random_blocks(block_type, rows, blocks * block_type.weights, np.random.default_rng(block_type.id))


@pytest.mark.parametrize("block_type", BlockType, ids=lambda block_type: block_type.name)
def test_every_type_dequantizes_to_the_bit_as_its_definition_says(block_type: BlockType) -> None:
    raw = random_rows(block_type)
    size = block_type.bytes
    blocks = [row.tobytes()[at : at + size] for row in raw for at in range(0, raw.shape[1], size)]
    expected = np.array([weight for block in blocks for weight in DECODERS[block_type](block)], np.float32)

    weights = dequantize(block_type, raw)

    assert weights.dtype == np.float32
    assert weights.shape == (3, 2 * block_type.weights)
    np.testing.assert_array_equal(weights.ravel(), expected)


@pytest.mark.parametrize("block_type", QUANTIZED, ids=lambda block_type: block_type.name)
def test_codes_scales_and_offsets_are_the_weights(block_type: BlockType) -> None:
    raw = random_rows(block_type, rows=5, blocks=3)

    blocks = unpack(block_type, raw)

    groups = 3 * block_type.weights // blocks.block_size
    assert blocks.codes.dtype == np.uint8
    assert blocks.codes.shape == (5, groups, blocks.block_size)
    assert 2 ** (blocks.bits - 1) <= int(blocks.codes.max()) < 2**blocks.bits
    assert blocks.scales.shape == (5, groups)
    weights = blocks.scales[..., None] * (blocks.codes.astype(np.float32) - np.float32(blocks.zero))
    if blocks.offsets is not None:
        assert blocks.offsets.shape == (5, groups)
        weights += blocks.offsets[..., None]
    np.testing.assert_array_equal(weights.reshape(5, -1), dequantize(block_type, raw))


FORMS = {
    BlockType.Q4_0: (4, 32, 8, False),
    BlockType.Q4_1: (4, 32, 0, True),
    BlockType.Q5_0: (5, 32, 16, False),
    BlockType.Q5_1: (5, 32, 0, True),
    BlockType.Q8_0: (8, 32, 128, False),
    BlockType.Q2_K: (2, 16, 0, True),
    BlockType.Q3_K: (3, 16, 4, False),
    BlockType.Q4_K: (4, 32, 0, True),
    BlockType.Q5_K: (5, 32, 0, True),
    BlockType.Q6_K: (6, 16, 32, False),
}


@pytest.mark.parametrize("block_type", QUANTIZED, ids=lambda block_type: block_type.name)
def test_each_type_has_its_bits_block_size_and_zero(block_type: BlockType) -> None:
    blocks = unpack(block_type, random_rows(block_type))

    assert (blocks.bits, blocks.block_size, blocks.zero, blocks.offsets is not None) == FORMS[block_type]


@pytest.mark.parametrize("block_type", BlockType, ids=lambda block_type: block_type.name)
def test_some_rows_alone_dequantize_as_they_do_among_others(block_type: BlockType) -> None:
    raw = random_rows(block_type, rows=7)

    np.testing.assert_array_equal(dequantize(block_type, raw[2:5]), dequantize(block_type, raw)[2:5])


@pytest.mark.parametrize("block_type", BlockType, ids=lambda block_type: block_type.name)
@pytest.mark.parametrize("byte", [0x00, 0x7C, 0xFF], ids=["zeros", "large", "not a number"])
def test_damaged_scales_give_no_warning_and_no_error(block_type: BlockType, byte: int) -> None:
    raw = np.full((2, block_type.bytes), byte, np.uint8)

    assert dequantize(block_type, raw).shape == (2, block_type.weights)


@pytest.mark.parametrize("block_type", BlockType, ids=lambda block_type: block_type.name)
def test_a_row_that_is_not_whole_blocks_is_refused(block_type: BlockType) -> None:
    with pytest.raises(ValueError, match="size"):
        dequantize(block_type, np.zeros((2, block_type.bytes + 1), np.uint8))


def test_plain_floats_are_not_unpacked() -> None:
    with pytest.raises(ValueError, match="F16 is not quantized"):
        unpack(BlockType.F16, np.zeros((1, 4), np.uint8))


def test_a_type_is_found_by_its_number_and_named_without_being_readable() -> None:
    assert BlockType.from_id(12) is BlockType.Q4_K
    assert BlockType.from_id(23) is None
    assert [type_name(number) for number in (12, 23, 39, 99)] == ["Q4_K", "IQ4_XS", "MXFP4", "type 99"]
