from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from onhand.errors import StorageError
from onhand.library import data_folder


def test_the_data_folder_is_the_one_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "a" / "b"))
    assert data_folder() == tmp_path / "a" / "b"
    assert data_folder().is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_the_data_folder_is_readable_by_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    assert stat.S_IMODE(data_folder().stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is Linux's")
def test_without_that_it_is_the_platforms_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONHAND_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "onhand"


def test_a_data_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(StorageError, match="ONHAND_HOME"):
        data_folder()
