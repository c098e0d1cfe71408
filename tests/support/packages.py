"""Package folders made from files, without a store."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from onhand.formats.package import WEIGHTS, ModelPackage
from support.tiny import write_tiny


def package_of(source: Path, folder: Path) -> ModelPackage:
    """A package of a file that exists already; the file is linked."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / WEIGHTS
    if not weights.exists():
        try:
            weights.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, weights)
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ModelPackage.create(folder, folder.name, digest)


def tiny_package(folder: Path, architecture: str = "llama", **how: Any) -> ModelPackage:
    """A package of a new tiny model; `how` goes to `write_tiny`."""
    folder.mkdir(parents=True, exist_ok=True)
    return package_of(write_tiny(folder / f"{architecture}.gguf", architecture, **how), folder / f"tiny-{architecture}")
