"""The exit codes of `onhand`: one table from error class to code."""

from __future__ import annotations

from onhand.errors import (
    BackendError,
    DownloadError,
    GenerationError,
    ModelFileNotFoundError,
    ModelFormatError,
    ModelNotFoundError,
    OnhandError,
    OptionError,
    StorageError,
    TemplateError,
)

OTHER = 1
USAGE = 2
NO_BACKEND = 8
INTERRUPTED = 130

EXIT_CODES: dict[type[OnhandError], int] = {
    OptionError: USAGE,
    ModelNotFoundError: 3,
    ModelFileNotFoundError: 3,
    ModelFormatError: 4,
    DownloadError: 5,
    StorageError: 6,
    GenerationError: 7,
    TemplateError: 7,
    BackendError: NO_BACKEND,
}
"""No class here is a parent of another; an error that is in none of them leaves with OTHER."""


def exit_code(error: Exception) -> int:
    """The exit code for an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), OTHER)
