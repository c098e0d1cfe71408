"""The header of a GGUF file, checked before anything in it is believed.

Written after the specification (ggml, `docs/gguf.md`). Nothing is allocated on the word of a count or a length: the
scan steps over strings and arrays and keeps where they lie, so that a bad file costs its few entries and no more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from onhand.errors import ModelFormatError, UnsupportedQuantizationError
from onhand.formats.blocks import BlockType, type_name
from onhand.formats.gguf_metadata import U64, Entry, Metadata, TypedMetadata, ValueType

MAX_KEYS = 4096  # real files have about 50
MAX_TENSORS = 2**15  # DeepSeek-V3, its experts merged, has about 1,000
MAX_NAME_BYTES = 256  # GGUF allows a tensor 64; real keys stay under 80
MAX_ITEMS = 2**21  # of an array; Gemma's vocabulary has 262,144 and its merges 514,906
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
ALIGNMENTS = (8, 2**21)  # GGUF asks for a multiple of 8; 2 MB is the largest page to put a tensor on
DEFAULT_ALIGNMENT = 32
VERSIONS = (2, 3)

_REMEDY = "it is cut short or damaged, fetch it again"
# What the version of a big-endian file reads as here.
_BYTE_SWAPPED = tuple(int.from_bytes(version.to_bytes(4, "little"), "big") for version in (1, *VERSIONS))
_SMALLEST_ENTRY = 8 + 1 + 4 + 1  # a key of one byte, a type, a value of one byte
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # a name of one byte, the dimensions (one), a type, an offset
_VALUE_TYPES = {value_type.id: value_type for value_type in ValueType}
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies.

    shape: in numpy's order, the length of a row last. offset: its first byte, from the file's beginning.
    nbytes: how many it takes.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def stop(self) -> int:
        """The byte after its last, from the file's beginning."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Header:
    """A header that holds together: every value and every tensor lies inside the file, no tensor on another."""

    version: int
    metadata: Metadata
    tensors: dict[str, GgufTensor]


def read_header(path: Path, data: memoryview) -> Header:
    """Scan the header of a file that begins with GGUF's magic.

    path: for messages. data: the whole file. Raises ModelFormatError, UnsupportedQuantizationError.
    """
    scanner = _Scanner(path, data)
    version = scanner.version()
    tensor_count = scanner.u64("the number of tensors")
    key_count = scanner.u64("the number of keys")
    scanner.check_count("metadata keys", key_count, MAX_KEYS, _SMALLEST_ENTRY)
    scanner.check_count("tensors", tensor_count, MAX_TENSORS, _SMALLEST_TENSOR)
    entries: dict[str, Entry] = {}
    for number in range(key_count):
        key = scanner.name(f"key {number}", entries)
        entries[key] = scanner.entry(f"key {key!r}")
    metadata = Metadata(path, data, entries)
    _refuse_shard(metadata)
    alignment = _alignment(metadata)
    tensors: dict[str, GgufTensor] = {}
    for number in range(tensor_count):
        name = scanner.name(f"tensor {number}", tensors)
        tensors[name] = scanner.tensor(name, alignment)
    base = -(-scanner.position // alignment) * alignment
    tensors = {t.name: replace(t, offset=base + t.offset) for t in tensors.values()}
    _check_places(path, tensors.values(), len(data))
    return Header(version, metadata, tensors)


def _refuse_shard(metadata: Metadata) -> None:
    values = TypedMetadata(metadata)
    shards = values.integer("split.count", default=1)
    if shards > 1:
        number = values.integer("split.no", default=0) + 1
        remedy = "join its files into one first (`llama-gguf-split --merge`)"
        raise ModelFormatError(metadata.path, f"is part {number} of a model in {shards} files: {remedy}")


def _alignment(metadata: Metadata) -> int:
    alignment = TypedMetadata(metadata).integer("general.alignment", default=DEFAULT_ALIGNMENT)
    smallest, largest = ALIGNMENTS
    if not smallest <= alignment <= largest or alignment & (alignment - 1):
        allowed = f"a power of two from {smallest} to {largest}"
        raise ModelFormatError(metadata.path, f"key 'general.alignment' is {alignment}; it takes {allowed}: {_REMEDY}")
    return alignment


def _check_places(path: Path, tensors: Iterable[GgufTensor], size: int) -> None:
    """Every tensor ends before the file of that size does and before the next one begins."""
    placed = sorted(tensors, key=lambda tensor: tensor.offset)
    last = max(placed, key=lambda tensor: tensor.stop, default=None)
    if last is not None and last.stop > size:
        short = f"the file has {size} bytes and is {last.stop - size} bytes short: {_REMEDY}"
        raise ModelFormatError(path, f"tensor {last.name!r} ends at byte {last.stop}, but {short}")
    for one, other in pairwise(placed):
        if one.stop > other.offset:
            where = f"inside {other.name!r}, which begins at byte {other.offset}"
            raise ModelFormatError(path, f"tensor {one.name!r} ends at byte {one.stop}, {where}: {_REMEDY}")


class _Scanner:
    """A position in the header that moves past nothing that the file does not hold."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.position = 0
        self._path = path
        self._data = data

    def _error(self, problem: str, remedy: str = _REMEDY) -> ModelFormatError:
        return ModelFormatError(self._path, f"{problem}: {remedy}")

    def _cut(self, what: str, stop: int) -> ModelFormatError:
        size = len(self._data)
        short = f"the file has {size} bytes and is {stop - size} or more bytes short"
        return self._error(f"{what} goes to byte {stop}, but {short}")

    def _skip(self, size: int, what: str) -> int:
        """Move on by size bytes, and give the position before."""
        start = self.position
        if start + size > len(self._data):
            raise self._cut(what, start + size)
        self.position = start + size
        return start

    def _u32(self, what: str) -> int:
        (number,) = _U32.unpack_from(self._data, self._skip(4, what))
        return int(number)

    def u64(self, what: str) -> int:
        (number,) = U64.unpack_from(self._data, self._skip(8, what))
        return int(number)

    def version(self) -> int:
        self._skip(4, "the magic")
        version = self._u32("the version")
        if version in _BYTE_SWAPPED:
            raise self._error("is a big-endian GGUF file", "get the little-endian one")
        if version not in VERSIONS:
            readable = f"{' and '.join(map(str, VERSIONS))} can be read"
            raise self._error(f"is GGUF of version {version}; {readable}", "get or convert it in one of those")
        return version

    def check_count(self, what: str, count: int, limit: int, smallest: int) -> None:
        """Refuse more things than the limit, or than the rest of the file holds if each has the smallest size."""
        if count > limit:
            raise self._error(f"claims {count} {what}; at most {limit} are read")
        if count * smallest > len(self._data) - self.position:
            raise self._cut(f"the list of {count} {what}", self.position + count * smallest)

    def name(self, what: str, taken: Container[str]) -> str:
        size = self.u64(f"the name of {what}")
        if not 1 <= size <= MAX_NAME_BYTES:
            raise self._error(f"the name of {what} has {size} bytes; it takes 1 to {MAX_NAME_BYTES}")
        start = self._skip(size, f"the name of {what}")
        try:
            name = str(self._data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise self._error(f"the name of {what} is not UTF-8") from None
        if name in taken:
            raise self._error(f"{what} is named {name!r}, as one before it is")
        return name

    def entry(self, what: str) -> Entry:
        """Step over a value."""
        value_type = self._value_type(what, "is of")
        if value_type is ValueType.STRING:
            size = self.u64(what)
            start = self._skip(size, what)
            return Entry(value_type, None, 1, start, self.position)
        if value_type is not ValueType.ARRAY:
            return Entry(value_type, None, 1, self._values(what, value_type, 1), self.position)
        item = self._value_type(what, "is an array of")
        count = self.u64(what)
        if item is ValueType.ARRAY:
            raise self._error(f"{what} is an array of arrays; expected an array of numbers, booleans or strings")
        if count > MAX_ITEMS:
            raise self._error(f"{what} is an array of {count} {item}; at most {MAX_ITEMS} are read")
        start = self._strings(what, count) if item is ValueType.STRING else self._values(what, item, count)
        return Entry(value_type, item, count, start, self.position)

    def _value_type(self, what: str, verb: str) -> ValueType:
        type_id = self._u32(what)
        if type_id not in _VALUE_TYPES:
            raise self._error(f"{what} {verb} type {type_id}; expected one of GGUF's types, 0 to {max(_VALUE_TYPES)}")
        return _VALUE_TYPES[type_id]

    def _values(self, what: str, item: ValueType, count: int) -> int:
        """Step over numbers or booleans, and give where they begin."""
        assert item.dtype is not None
        start = self._skip(count * item.dtype.itemsize, what)
        if item is ValueType.BOOL:
            wrong = self._data[start : self.position].tobytes().strip(b"\0\1")
            if wrong:
                raise self._error(f"{what} holds a bool of {wrong[0]}; it takes 0 and 1")
        return start

    def _strings(self, what: str, count: int) -> int:
        """Step over strings, and give where the first one's length begins. Inlined: vocabularies are long."""
        start = position = self.position
        data, read, last = self._data, U64.unpack_from, len(self._data) - 8
        for number in range(count):
            if position > last:
                raise self._cut(f"string {number} of {what}", position + 8)
            position += 8 + read(data, position)[0]
        self.position = start
        self._skip(position - start, what)
        return start

    def tensor(self, name: str, alignment: int) -> GgufTensor:
        """Read a tensor's description. Its offset is still from the beginning of the tensors, not of the file."""
        what = f"tensor {name!r}"
        dimensions = self._u32(what)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._error(f"{what} has {dimensions} dimensions; it takes 1 to {MAX_DIMENSIONS}")
        shape = tuple(reversed([self.u64(what) for _ in range(dimensions)]))
        if min(shape) < 1:
            raise self._error(f"{what} has the shape {shape}; every dimension takes 1 or more")
        type_id = self._u32(what)
        block_type = BlockType.from_id(type_id)
        if block_type is None:
            readable = [readable.name for readable in BlockType]
            raise UnsupportedQuantizationError(self._path, name, type_name(type_id), readable)
        if shape[-1] % block_type.weights:
            whole = f"{block_type.name} takes a multiple of {block_type.weights}"
            raise self._error(f"{what} has rows of {shape[-1]} weights; {whole}")
        offset = self.u64(what)
        if offset % alignment:
            raise self._error(f"{what} begins at byte {offset} of the tensors; it takes a multiple of {alignment}")
        return GgufTensor(name, block_type, shape, offset, math.prod(shape) // block_type.weights * block_type.bytes)
