"""A conversation's KV cache in a file, from which it goes on without being read again.

    header               magic, version, key, counts
    ids, cuts            uint32: all tokens of the conversation, and the spans that are out of sight
    each layer's keys    a scale for each channel, (kv_heads, head_size) float32; int8, (kv_heads, tokens, head_size)
    each layer's values  a scale for each token, (kv_heads, tokens) float32; int8, (kv_heads, tokens, head_size)
    sha256 of the above

All little-endian. Keys have their outliers in a few channels, values in a few tokens, so rounded like that the model
notices less than with either kind of scale for both (KIVI, Liu et al. 2024). A file is written and read layer by layer.
Nothing in it is trusted: its size must be what the counts say before anything is allocated by them.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from onhand.backends import LayerKv
from onhand.decoding.cuts import Cuts
from onhand.errors import CacheFileError
from onhand.formats.spec import DecoderSpec
from onhand.formats.tokenizer import Tokenizer
from onhand.options import Overflow

CACHE_SEMANTICS = 1
"""To be raised when the same tokens come to have other keys or values: files of before are then of no use."""

VERSION = 1
"""Of the layout."""

MAGIC = b"onhandKV"
MOST_IDS = 2**24
BLOCK_BYTES = 2**20  # hashed at a time
LARGEST_SCALE = float(np.finfo(np.float32).max / 128)

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
Number = TypeVar("Number", np.uint32, np.float32, np.int8)


class _Header(NamedTuple):
    magic: bytes
    version: int
    key: bytes
    layers: int
    kv_heads: int
    head_size: int
    ids: int
    visible: int
    spans: int


_HEADER = struct.Struct("<8sI32s6I")
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class KvFile:
    """What a file holds. ids, cuts: as in `Slot`. layers: can be gone through once, while the file is open."""

    ids: list[int]
    cuts: Cuts
    layers: Iterator[LayerKv]

    @property
    def tokens(self) -> int:
        """How many tokens the layers are of."""
        return len(self.ids) - self.cuts.total


def cache_key(model: str, tokenizer: Tokenizer, spec: DecoderSpec, context_tokens: int, overflow: Overflow) -> bytes:
    """Of what must be the same for keys and values to be of use: 32 bytes. model: the sha256 of the weights.

    overflow: a window that slid holds other keys and values than one that was read anew.
    """
    scalings = [rope.scaling for rope in spec.ropes if rope.scaling is not None]
    long = [context_tokens > scaling.original_context_tokens for scaling in scalings if scaling.long_factors]
    parts = (CACHE_SEMANTICS, model, tokenizer.fingerprint, spec, long, overflow)
    return hashlib.sha256(repr(parts).encode()).digest()


def write_kv(
    path: Path, key: bytes, spec: DecoderSpec, ids: Sequence[int], cuts: Cuts, layers: Iterator[LayerKv]
) -> None:
    """Fill a new file, which nobody but the user may read. layers: of the tokens that are left of the ids, or more.

    Raises OSError.
    """
    count, visible = len(ids), len(ids) - cuts.total
    header = _Header(
        MAGIC, VERSION, key, len(spec.layers), spec.kv_heads, spec.head_size, count, visible, len(cuts.spans)
    )
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        total = hashlib.sha256()

        def write(data: bytes | memoryview) -> None:
            total.update(data)
            file.write(data)

        write(_HEADER.pack(*header))
        write(np.array(ids, "<u4").data)
        write(np.array(cuts.spans, "<u4").data)
        for keys, values in layers:
            for x, axis in ((keys, 1), (values, 2)):
                for part in _rounded(x[:, :visible], axis):
                    write(part.data)
        file.write(total.digest())


@contextmanager
def read_kv(path: Path, key: bytes, spec: DecoderSpec, most_tokens: int) -> Iterator[KvFile]:
    """Open a file, once all of it was found to be as it was written and of use here. Raises CacheFileError."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            header = _header(file, path, key, spec, most_tokens)
            _check_digest(file, path)
            file.seek(_HEADER.size)
            ids, cuts = _ids(file, path, header, spec), _cuts(file, path, header)
            yield KvFile(ids, cuts, _layers(file, path, header))
    except FileNotFoundError as error:
        raise CacheFileError(path, "missing", "there is no such file") from error
    except OSError as error:
        if isinstance(error, CacheFileError):
            raise
        raise CacheFileError(path, "unreadable", f"it cannot be read: {error.strerror or error}") from error


def _open_at_once(name: str, flags: int) -> int:
    """Open, and not wait for whoever may write to a pipe of that name."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _rounded(x: F32, axis: int) -> tuple[F32, I8]:
    """Scales, one along the axis, and x in steps of them, from -127 to 127. x: (kv_heads, tokens, head_size)."""
    highest = np.maximum(x.max(axis=axis, keepdims=True), -x.min(axis=axis, keepdims=True))
    scales: F32 = highest / np.float32(127)
    with np.errstate(invalid="ignore"):  # what is no number makes scales that are none, which no reader takes
        steps = np.rint(x / np.where(scales == 0, np.float32(1), scales))
        return scales.astype("<f4", "C").squeeze(axis), np.clip(steps, -127, 127).astype(np.int8, "C")


def _header(file: BinaryIO, path: Path, key: bytes, spec: DecoderSpec, most_tokens: int) -> _Header:
    """The header, if it is of this model and the file as long as it says."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise CacheFileError(path, "unreadable", "it is no regular file")
    data = file.read(_HEADER.size)
    if data[: len(MAGIC)] != MAGIC or len(data) < _HEADER.size:
        raise _damaged(path, "it is no cache file, or cut short")
    header = _Header._make(_HEADER.unpack(data))
    if header.version != VERSION:
        raise CacheFileError(path, "version", f"it is of version {header.version}, and {VERSION} is read")
    if header.key != key:
        raise CacheFileError(path, "model", "it was made with another model, overflow= or release of onhand")
    if (header.layers, header.kv_heads, header.head_size) != (len(spec.layers), spec.kv_heads, spec.head_size):
        raise _damaged(path, "its shape is not the model's")
    if not 1 <= header.visible <= header.ids <= MOST_IDS or header.spans > header.ids:
        raise _damaged(path, "its counts contradict each other")
    if header.visible > most_tokens:
        problem = f"it holds {header.visible} tokens and the window {most_tokens}"
        raise CacheFileError(path, "window", problem)
    if status.st_size != _file_bytes(header):
        raise _damaged(path, f"it has {status.st_size} bytes and should have {_file_bytes(header)}")
    return header


def _file_bytes(header: _Header) -> int:
    scales = 4 * header.kv_heads * (header.head_size + header.visible)
    layer = scales + 2 * header.kv_heads * header.visible * header.head_size
    return _HEADER.size + 4 * header.ids + 8 * header.spans + header.layers * layer + _DIGEST_BYTES


def _check_digest(file: BinaryIO, path: Path) -> None:
    left = file.seek(-_DIGEST_BYTES, os.SEEK_END)
    claimed = file.read()
    file.seek(0)
    total = hashlib.sha256()
    while left and (block := file.read(min(left, BLOCK_BYTES))):
        total.update(block)
        left -= len(block)
    if total.digest() != claimed:
        raise _damaged(path, "it is not as it was written")


def _ids(file: BinaryIO, path: Path, header: _Header, spec: DecoderSpec) -> list[int]:
    ids = _read(file, path, np.dtype("<u4"), header.ids)
    if ids.max() >= spec.vocab_size:
        raise _damaged(path, "it holds tokens that the model has not")
    found: list[int] = ids.tolist()
    return found


def _cuts(file: BinaryIO, path: Path, header: _Header) -> Cuts:
    """The cuts, if they are what `Cuts` asks for and leave what the header says."""
    edges = _read(file, path, np.dtype("<u4"), 2 * header.spans).astype(np.int64)
    if (np.diff(edges) <= 0).any() or edges.max(initial=0) > header.ids:
        raise _damaged(path, "its cuts overlap")
    cuts = Cuts(tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)))
    if header.ids - cuts.total != header.visible:
        raise _damaged(path, "its cuts leave another number of tokens than it holds")
    return cuts


def _layers(file: BinaryIO, path: Path, header: _Header) -> Iterator[LayerKv]:
    heads, tokens, size = header.kv_heads, header.visible, header.head_size
    for _ in range(header.layers):
        key_scales = _scales(file, path, heads * size).reshape(heads, 1, size)
        keys = _steps(file, path, header) * key_scales
        value_scales = _scales(file, path, heads * tokens).reshape(heads, tokens, 1)
        yield keys, _steps(file, path, header) * value_scales


def _scales(file: BinaryIO, path: Path, count: int) -> F32:
    scales = _read(file, path, np.dtype("<f4"), count).astype(np.float32, copy=False)
    if not ((scales >= 0) & (scales <= LARGEST_SCALE)).all():  # of what is no number neither is so
        raise _damaged(path, "it holds scales that are none")
    return scales


def _steps(file: BinaryIO, path: Path, header: _Header) -> I8:
    shape = (header.kv_heads, header.visible, header.head_size)
    return _read(file, path, np.dtype(np.int8), math.prod(shape)).reshape(shape)


def _read(file: BinaryIO, path: Path, dtype: np.dtype[Number], count: int) -> npt.NDArray[Number]:
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise _damaged(path, "it was cut short while it was read")
    return np.frombuffer(data, dtype)


def _damaged(path: Path, how: str) -> CacheFileError:
    return CacheFileError(path, "damaged", how)
