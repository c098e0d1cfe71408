"""Reads GGUF files: memory-mapped, and never trusted.

    with GgufFile.open(path) as file:
        layers = file.integer("llama.block_count")
        weights = dequantize(file.tensors[name].type, file.raw(name))

Opening reads the header alone and checks all of it; `gguf_header` says what is checked, `gguf_metadata` how values are
asked for. A file that changes while it is open is beyond what can be checked.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from onhand.errors import ModelFileNotFoundError, ModelFormatError
from onhand.formats.gguf_header import GgufTensor, Header, read_header
from onhand.formats.gguf_metadata import TypedMetadata
from onhand.formats.signatures import HEAD_BYTES, refusal

MAGIC = b"GGUF"


class GgufFile(TypedMetadata):
    """An open GGUF file: its metadata (`metadata` and the typed getters) and its tensors, in the file's order."""

    def __init__(self, header: Header, mapping: mmap, data: memoryview) -> None:
        super().__init__(header.metadata)
        self.version = header.version
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(header.tensors)
        self._mapping: mmap | None = mapping
        self._data = data

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Map a file and check its header.

        Raises UnsafeFormatError for a pickle or an archive; UnsupportedQuantizationError if any tensor is of a type
        that cannot be read, so that no import fails halfway; ModelFormatError for every other file that is not sound
        GGUF, for one that is not there, and for one part of a model in several files.
        """
        path = Path(path)
        mapping = _map(path)
        data = memoryview(mapping)
        try:
            return cls(read_header(path, data), mapping, data)
        except ModelFormatError:
            data.release()  # by hand, so that a bad file can be deleted while its error is still being handled
            mapping.close()
            raise

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, (rows, row_bytes) uint8; one row if it has one dimension.

        A read-only view of the file: pages are read when they are touched, and the file stays mapped until the last
        view is gone. Raises ModelFormatError if there is no such tensor, ValueError after `close`.
        """
        if name not in self.tensors:
            raise ModelFormatError(self.path, f"there is no tensor {name!r} in it")
        if self._mapping is None:
            raise ValueError(f"{self.path.name} was closed")
        tensor = self.tensors[name]
        rows = np.frombuffer(self._mapping, np.uint8, tensor.nbytes, tensor.offset)
        return rows.reshape(-1, tensor.shape[-1] // tensor.type.weights * tensor.type.bytes)

    def close(self) -> None:
        """Let go of the file; metadata and tensors can no longer be read. Closing twice is allowed."""
        self._data.release()
        self._mapping = None  # not closed: the operating system unmaps it when the last view of `raw` is gone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _map(path: Path) -> mmap:
    """Map a file that begins as a GGUF file does."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ModelFormatError(path, "is a folder, not a file" if stat.S_ISDIR(mode) else "is not a regular file")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if not head.startswith(MAGIC):
                raise refusal(path, head)
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileNotFoundError(path) from None
    except OSError as error:
        raise ModelFormatError(path, f"cannot be read: {error.strerror}") from error
