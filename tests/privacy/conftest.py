"""A data folder for each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder, not made yet."""
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
