"""GGUF's metadata: where each value lies, its decoding, and getters that ask for the type that a value must have."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onhand.errors import ModelFormatError

Scalar = TypeVar("Scalar", bool, int, float, str)
Number = TypeVar("Number", bound=np.generic)

MetadataValue = bool | int | float | str | list[str] | npt.NDArray[np.generic]
"""A number of any width is an int or a float; an array of numbers keeps its declared type; one of strings is a list."""

U64 = struct.Struct("<Q")
"""A length or a count."""

MAX_VALUE_BYTES = 2**24
"""Of one value, in the file. Gemma's merges take 10 MB. Text takes up to four times as much when it is decoded."""


class ValueType(Enum):
    """The types of metadata: their number in the file and, unless string or array, their numpy type."""

    UINT8 = (0, "u1")
    INT8 = (1, "i1")
    UINT16 = (2, "<u2")
    INT16 = (3, "<i2")
    UINT32 = (4, "<u4")
    INT32 = (5, "<i4")
    FLOAT32 = (6, "<f4")
    BOOL = (7, "?")
    STRING = (8, None)
    ARRAY = (9, None)
    UINT64 = (10, "<u8")
    INT64 = (11, "<i8")
    FLOAT64 = (12, "<f8")

    def __init__(self, type_id: int, dtype: str | None) -> None:
        self.id = type_id
        self.dtype = np.dtype(dtype) if dtype else None

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a value lies in the file, from byte start to byte stop. item and count: an array's; else None and 1."""

    type: ValueType
    item: ValueType | None
    count: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"array of {self.count} {self.item}" if self.item else str(self.type)


class Metadata(Mapping[str, MetadataValue]):
    """The values by key, each decoded anew when asked for. Raises ModelFormatError for one too large for any model.

    Invalid UTF-8 never raises. In a string it becomes U+FFFD, for strings are shown. In an array of strings, which are
    tokens, it becomes surrogates, so that tokens stay distinct and `token.encode("utf-8", "surrogateescape")` gives
    their bytes back.
    """

    def __init__(self, path: Path, data: memoryview, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self.entries = entries
        self._data = data

    def __getitem__(self, key: str) -> MetadataValue:
        entry = self.entries[key]
        size = entry.stop - entry.start
        if size > MAX_VALUE_BYTES:
            raise ModelFormatError(self.path, f"key {key!r} takes {size} bytes; at most {MAX_VALUE_BYTES} are read")
        content = self._data[entry.start : entry.stop]
        if entry.type is ValueType.STRING:
            return str(content, "utf-8", "replace")
        if entry.item is ValueType.STRING:
            return _strings(bytes(content), entry.count)
        stored: npt.NDArray[np.generic] = np.frombuffer(content, (entry.item or entry.type).dtype)
        if entry.item:
            return stored.copy()
        number: bool | int | float = stored[0].item()
        return number

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _strings(content: bytes, count: int) -> list[str]:
    """Strings that lie one after another, each after its length of eight bytes."""
    strings = []
    start = 0
    for _ in range(count):
        (size,) = U64.unpack_from(content, start)
        start += 8 + size
        strings.append(content[start - size : start].decode("utf-8", "surrogateescape"))
    return strings


class TypedMetadata:
    """Metadata asked for by type.

    Every getter raises ModelFormatError that names the key, the type found and the type expected; also for a key that
    is not there, unless a default is given. length: how many items an array must have; None takes any number.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.path = metadata.path
        self.metadata = metadata

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of any width."""
        return self._one(key, (int,), "an integer", default)

    def number(self, key: str, default: float | None = None) -> float:
        """A float or an integer of any width. It may be infinite or NaN."""
        return float(self._one(key, (float, int), "a number", default))

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """A boolean."""
        return self._one(key, (bool,), "a bool", default)

    def string(self, key: str, default: str | None = None) -> str:
        """A string, with U+FFFD for invalid UTF-8."""
        return self._one(key, (str,), "a string", default)

    def strings(self, key: str, length: int | None = None) -> list[str]:
        """An array of strings, with surrogates for invalid UTF-8 (see Metadata)."""
        self._check_array(key, (ValueType.STRING,), length)
        value = self.metadata[key]
        if not isinstance(value, list):
            raise self._mismatch(key, "an array of string")
        return value

    def numbers(self, key: str, dtype: type[Number], length: int | None = None) -> npt.NDArray[Number]:
        """An array declared as exactly this numpy type (np.int32, np.float32, np.bool_, ...): (length,) of it."""
        items = [item for item in ValueType if item.dtype == np.dtype(dtype)]
        self._check_array(key, items, length)
        return np.asarray(self.metadata[key], dtype)

    def _one(self, key: str, kinds: tuple[type[Scalar], ...], expected: str, default: Scalar | None) -> Scalar:
        entry = self.metadata.entries.get(key)
        if entry is None and default is not None:
            return default
        value = None if entry is None or entry.item else self.metadata[key]
        if isinstance(value, kinds) and type(value) in kinds:  # a bool is an int to isinstance alone
            return value
        raise self._mismatch(key, expected)

    def _check_array(self, key: str, items: Sequence[ValueType], length: int | None) -> None:
        entry = self.metadata.entries.get(key)
        if entry is None or entry.item not in items or length not in (None, entry.count):
            size = "" if length is None else f"{length} "
            raise self._mismatch(key, f"an array of {size}{' or '.join(map(str, items))}")

    def _mismatch(self, key: str, expected: str) -> ModelFormatError:
        entry = self.metadata.entries.get(key)
        found = f"is of type {entry}" if entry else "is missing"
        return ModelFormatError(self.path, f"key {key!r} {found}; expected {expected}")
