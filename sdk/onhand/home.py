"""Where onhand keeps what it owns."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

from onhand.errors import StorageError


def data_folder() -> Path:
    """The folder of everything that onhand keeps, made on first use, readable by its owner alone.

    ONHAND_HOME names it; otherwise it is the platform's folder for a user's application data. Raises StorageError.
    """
    chosen = os.environ.get("ONHAND_HOME")
    folder = Path(chosen).absolute() if chosen else user_data_path("onhand", appauthor=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the data folder {folder} cannot be made ({error.strerror}): set ONHAND_HOME to a folder of yours"
        ) from error
    return folder
