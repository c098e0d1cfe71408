"""Copying and hashing large files, and what goes wrong on a disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from onhand.errors import OnhandError, StorageError
from onhand.types import Progress

CHUNK_BYTES = 4 << 20
MARGIN_BYTES = 32 << 20  # left free: a disk filled to its last byte makes other programs fail too

_REASONS = {
    errno.ENOSPC: "the disk is full: free some space and try again",
    errno.EDQUOT: "your disk quota is used up: free some space and try again",
    errno.EFBIG: "a file would be larger than this system lets you write: raise the limit (ulimit -f)",
    errno.EROFS: "the disk is read-only: set ONHAND_HOME to a folder on another disk",
    errno.EACCES: "permission is denied: change the folder's owner or mode, or set ONHAND_HOME to another folder",
    errno.EPERM: "permission is denied: change the folder's owner or mode, or set ONHAND_HOME to another folder",
}


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn what the operating system says about a disk into a StorageError: what cannot be done, why, a remedy."""
    try:
        yield
    except OnhandError:
        raise  # DownloadError and StorageError are OSErrors too, and already say what is wrong
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}: check that the disk is there and sound")
        raise StorageError(f"{what}: {reason}") from error


def check_room(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Raise StorageError, with both numbers, unless needed_bytes and a margin are free where the folder lies."""
    free = shutil.disk_usage(folder).free
    wanted = needed_bytes + MARGIN_BYTES
    if free < wanted:
        raise StorageError(
            f"{purpose} needs {wanted / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free on the disk of {folder}: "
            "free some space, or set ONHAND_HOME to a folder on another disk"
        )


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """The file's sha256 in hex."""
    with path.open("rb") as source:
        return copy_hashed(source, None, path.stat().st_size, f"checking {path.name}", progress)


def link_or_copy(source: Path, target: Path, progress: Progress | None = None) -> str:
    """Make target the same file as source, or a copy on the disk itself; give its sha256 in hex."""
    try:
        target.hardlink_to(source.resolve())  # a link to a symlink would be a second symlink
    except OSError:  # another disk, a disk without links, another owner's file: all of them can be copied
        return _copy(source, target, progress)
    return hash_file(target, progress)


def _copy(source: Path, target: Path, progress: Progress | None) -> str:
    size = source.stat().st_size
    check_room(target.parent, size, f"a copy of {source.name}")
    with source.open("rb") as reader, target.open("xb") as writer:
        return copy_hashed(reader, writer, size, f"copying {source.name}", progress)


def copy_hashed(reader: IO[bytes], writer: IO[bytes] | None, size: int, what: str, progress: Progress | None) -> str:
    """Read to the end, hash, and write to the disk itself what was read if there is a writer. sha256 in hex."""
    digest = hashlib.sha256()
    done = 0
    while chunk := reader.read(CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
        if writer is not None:
            writer.write(chunk)
        if progress is not None:
            progress(what, done, max(size, done))
    if writer is not None:
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()
