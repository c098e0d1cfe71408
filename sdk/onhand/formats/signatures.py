"""What a file is, by its first bytes: so that a file that is no model gets a fitting sentence and is never opened."""

from __future__ import annotations

import re
from pathlib import Path

from onhand.errors import ModelFormatError, UnsafeFormatError

HEAD_BYTES = 512
"""How much of a file's beginning `refusal` needs."""

_CONVERT = "it is not opened, for that could run code: convert it to GGUF first, where you trust it"
_FETCH = "fetch it again"

# Pickles of protocols 2 to 5 begin with their number; of 0 and 1 with a module and a name, or with a container.
_SIGNATURES: tuple[tuple[bytes, type[ModelFormatError], str], ...] = (
    (rb"\Z", ModelFormatError, f"is empty: {_FETCH}"),
    (rb"PK(\x03\x04|\x05\x06|\x07\x08)", UnsafeFormatError, f"is a zip archive or a PyTorch checkpoint; {_CONVERT}"),
    (rb"\x80[\x02-\x05]", UnsafeFormatError, f"reads as a Python pickle; {_CONVERT}"),
    (rb"\(*([ci][\w.]+\n[\w.]+\n|[dlt]p\d+\n|[\]})]q)", UnsafeFormatError, f"reads as a Python pickle; {_CONVERT}"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|\x28\xb5\x2f\xfd", UnsafeFormatError, f"is an archive; {_CONVERT}"),
    (rb"(?s:.{257})ustar", UnsafeFormatError, f"is a tar archive; {_CONVERT}"),
    (rb"\x89HDF", UnsafeFormatError, f"is an HDF5 file; {_CONVERT}"),
    (rb"(?s:.{8})\{\s*\"", ModelFormatError, "is a safetensors file: convert it to GGUF first"),
    (
        rb"version https://git-lfs",
        ModelFormatError,
        "is a Git LFS pointer, not the model: run `git lfs pull` beside it",
    ),
    (rb"(?i)\s*<(!doctype|html|\?xml)", ModelFormatError, f"is a web page, for the download went wrong: {_FETCH}"),
    (rb"\s*\{", ModelFormatError, f"is JSON, perhaps the message of a download that went wrong: {_FETCH}"),
    (rb"lmgg|fmgg|tjgg|algg", ModelFormatError, "is a GGML file from before GGUF: get the model as GGUF"),
    (rb"\0{8}", ModelFormatError, f"begins with zeros, as a download that was not finished does: {_FETCH}"),
)


def refusal(path: Path, head: bytes) -> ModelFormatError:
    """The error for a file that is not what was asked for. head: its first HEAD_BYTES, or all of it."""
    for pattern, error, sentence in _SIGNATURES:
        if re.match(pattern, head):
            return error(path, sentence)
    return ModelFormatError(path, f"is not a GGUF file: it begins with {head[:8]!r}")
