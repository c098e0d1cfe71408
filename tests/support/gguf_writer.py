"""Writes small GGUF files, sound ones and ones that lie about themselves.

    write_gguf(path, {"general.architecture": "llama"}, {"w": (BlockType.Q4_0, random_blocks(...), (4, 64))})

A value's type follows from Python's (see `_typed`); `Value` says it outright, and can lie. A tensor is a tuple (type,
data, shape) with the shape in numpy's order, or a `Tensor`, which can lie too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onhand.formats.blocks import BlockType

UINT8, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 5, 6, 7, 8, 9, 10
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_NUMPY_TYPES = {np.dtype(code): type_id for type_id, code in _FORMATS.items() if type_id != BOOL} | {
    np.dtype("?"): BOOL
}


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value with its number of type. item: of an array's items. raw: bytes to write in place of content."""

    type: int
    content: Any = None
    item: int = 0
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. dims (ggml's order), type_id, offset (among the tensors) and dimensions: what to claim, if not None."""

    type: BlockType
    data: npt.NDArray[Any]
    shape: tuple[int, ...]
    dims: Sequence[int] | None = None
    type_id: int | None = None
    offset: int | None = None
    dimensions: int | None = None


AnyTensor = Tensor | tuple[BlockType, npt.NDArray[Any], tuple[int, ...]]
Metadata = Mapping[str, Any] | Sequence[tuple[str, Any]]
Tensors = Mapping[str, AnyTensor] | Sequence[tuple[str, AnyTensor]]


def write_gguf(path: Path, metadata: Metadata, tensors: Tensors, **header: Any) -> Path:
    """Write a file; the arguments are those of `gguf_bytes`."""
    path.write_bytes(gguf_bytes(metadata, tensors, **header))
    return path


def gguf_bytes(
    metadata: Metadata,
    tensors: Tensors,
    *,
    version: int = 3,
    alignment: int = 32,
    key_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A GGUF file. Pairs in place of a mapping may repeat a name; the counts are what to claim, if not None.

    alignment is where the tensors are put; the key `general.alignment` is the caller's.
    """
    keys = list(metadata.items()) if isinstance(metadata, Mapping) else metadata
    pairs = list(tensors.items()) if isinstance(tensors, Mapping) else tensors
    named = [(name, tensor if isinstance(tensor, Tensor) else Tensor(*tensor)) for name, tensor in pairs]
    header = struct.pack(
        "<4sIQQ",
        b"GGUF",
        version,
        len(named) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    header += b"".join(_string(key) + _value(_typed(value)) for key, value in keys)
    data = b""
    for name, tensor in named:
        data += b"\0" * (-len(data) % alignment)
        header += _description(name, tensor, len(data))
        data += encode(tensor.type, tensor.data)
    return header + b"\0" * (-len(header) % alignment) + data


def encode(block_type: BlockType, data: npt.NDArray[Any]) -> bytes:
    """Bytes as they are; floats as F32, F16 or BF16, the last cut off and not rounded."""
    if data.dtype == np.uint8:
        return data.tobytes()
    floats = np.asarray(data, np.float32)
    match block_type:
        case BlockType.F32:
            return floats.tobytes()
        case BlockType.F16:
            return floats.astype(np.float16).tobytes()
        case BlockType.BF16:
            return (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    raise TypeError(f"{block_type.name} takes uint8: see random_blocks")


# Where a block's float16 scale and offset lie, and its largest code times the largest of its own small scales.
_HALVES: dict[BlockType, tuple[int, int | None, int]] = {
    BlockType.Q4_0: (0, None, 8),
    BlockType.Q4_1: (0, 2, 15),
    BlockType.Q5_0: (0, None, 16),
    BlockType.Q5_1: (0, 2, 31),
    BlockType.Q8_0: (0, None, 128),
    BlockType.Q2_K: (80, 82, 3 * 15),
    BlockType.Q3_K: (108, None, 4 * 32),
    BlockType.Q4_K: (0, 2, 15 * 63),
    BlockType.Q5_K: (0, 2, 31 * 63),
    BlockType.Q6_K: (208, None, 32 * 128),
}


def random_blocks(
    block_type: BlockType, rows: int, columns: int, rng: np.random.Generator, largest: float = 0.1
) -> npt.NDArray[np.uint8]:
    """Random rows of any type, (rows, row_bytes) uint8, whose weights lie about 0 and not much beyond `largest`."""
    if not block_type.quantized:
        weights = rng.uniform(-largest, largest, (rows, columns)).astype(np.float32)
        return np.frombuffer(encode(block_type, weights), np.uint8).reshape(rows, -1)
    blocks = rng.integers(0, 256, (rows * columns // block_type.weights, block_type.bytes), np.uint8)
    scale_at, offset_at, reach = _HALVES[block_type]
    scales = rng.uniform(largest / 2, largest, len(blocks)) / reach
    blocks[:, scale_at : scale_at + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    if offset_at is not None:
        small = {BlockType.Q4_1: -7.5, BlockType.Q5_1: -15.5, BlockType.Q2_K: 1.5, BlockType.Q4_K: 7.5}
        offsets = scales * small.get(block_type, 15.5)
        blocks[:, offset_at : offset_at + 2] = offsets.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def _typed(value: Any) -> Value:
    """int is UINT32 (or INT32, or UINT64), float FLOAT32; a list is of its first item's type, ints INT32."""
    match value:
        case Value():
            return value
        case bool():
            return Value(BOOL, value)
        case int():
            return Value(INT32 if value < 0 else UINT32 if value < 2**32 else UINT64, value)
        case float():
            return Value(FLOAT32, value)
        case str() | bytes():
            return Value(STRING, value)
        case np.ndarray():
            return Value(ARRAY, value.tolist(), _NUMPY_TYPES[value.dtype])
        case [str() | bytes(), *_] | []:
            return Value(ARRAY, value, STRING)
        case [bool(), *_]:
            return Value(ARRAY, value, BOOL)
        case [int(), *_]:
            return Value(ARRAY, value, INT32)
        case [float(), *_]:
            return Value(ARRAY, value, FLOAT32)
    raise TypeError(f"{value!r} has no GGUF type")


def _value(value: Value) -> bytes:
    head = struct.pack("<I", value.type)
    if value.raw is not None:
        return head + value.raw
    if value.type == ARRAY:
        items = b"".join(_item(value.item, item) for item in value.content)
        return head + struct.pack("<IQ", value.item, len(value.content)) + items
    return head + _item(value.type, value.content)


def _item(type_id: int, content: Any) -> bytes:
    return _string(content) if type_id == STRING else struct.pack("<" + _FORMATS[type_id], content)


def _string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def _description(name: str, tensor: Tensor, offset: int) -> bytes:
    dims = tuple(reversed(tensor.shape)) if tensor.dims is None else tensor.dims
    return (
        _string(name)
        + struct.pack("<I", len(dims) if tensor.dimensions is None else tensor.dimensions)
        + b"".join(struct.pack("<Q", dim) for dim in dims)
        + struct.pack("<I", tensor.type.id if tensor.type_id is None else tensor.type_id)
        + struct.pack("<Q", offset if tensor.offset is None else tensor.offset)
    )
