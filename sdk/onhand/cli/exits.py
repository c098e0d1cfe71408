"""The exit codes of `onhand`: one table from error class to code."""

from __future__ import annotations

import errno

from onhand.errors import (
    BackendError,
    DownloadError,
    GenerationError,
    MemoryPlanError,
    ModelFileNotFoundError,
    ModelFormatError,
    ModelNotFoundError,
    OfflineError,
    OnhandError,
    OptionError,
    StorageError,
    TemplateError,
)

OTHER = 1
USAGE = 2
STORAGE = 6
NO_BACKEND = 8
INTERRUPTED = 130

EXIT_CODES: dict[type[OnhandError], int] = {
    OptionError: USAGE,
    ModelNotFoundError: 3,
    ModelFileNotFoundError: 3,
    ModelFormatError: 4,
    DownloadError: 5,
    StorageError: STORAGE,
    GenerationError: 7,
    TemplateError: 7,
    BackendError: NO_BACKEND,
    MemoryPlanError: 9,
    OfflineError: 10,
}
"""No class here is a parent of another; an error that is in none of them leaves with OTHER."""


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What the system says of a disk that is full, read-only or gone, where nothing has made a StorageError of it."""


def exit_code(error: Exception) -> int:
    """The exit code for an error."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return STORAGE
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), OTHER)
