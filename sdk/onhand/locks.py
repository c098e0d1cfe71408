"""One writer at a time, among all processes of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onhand.types import Progress

POLL_SECONDS = 0.1

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def exclusive(path: Path, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock file `path`, made if need be; wait for whoever holds it. A process that dies lets go of it."""
    with _opened(path) as descriptor:
        if not _try_lock(descriptor):
            if progress is not None:
                progress("waiting for another onhand", 0, 1)
            while not _try_lock(descriptor):
                time.sleep(POLL_SECONDS)
        yield


@contextmanager
def exclusive_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` if nobody does; the value says whether it is held."""
    with _opened(path) as descriptor:
        yield _try_lock(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # which unlocks
