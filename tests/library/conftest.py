"""Small models to try the library with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onhand.library import ModelStore
from support.tiny import write_tiny


@pytest.fixture
def gguf(tmp_path: Path) -> Callable[..., Path]:
    """Makes sound GGUF files; another seed makes another model."""

    def make(name: str = "tiny.gguf", seed: int = 0) -> Path:
        return write_tiny(tmp_path / name, seed=seed)

    return make


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """An empty store."""
    return ModelStore(tmp_path / "home")
