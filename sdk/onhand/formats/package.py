"""A model on this device: a folder with its weights, what is known of them, and what backends compiled from them.

    <name>/
      model.json       format, name; sha256, size and time of the weights
      weights.gguf     as they came, never changed
      tokenizer-*.npz  rebuilt from the weights once (see `Tokenizer`)
      <backend>/       what a backend compiled, with a manifest of its own
      .lock            held by whoever compiles

Only model.json and weights.gguf matter; the rest is rebuilt when it is missing or stale.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onhand.errors import ModelFormatError

PACKAGE_FORMAT = 1
MANIFEST = "model.json"
WEIGHTS = "weights.gguf"


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A model's folder. sha256 and size_bytes are of the weights."""

    folder: Path
    name: str
    sha256: str
    size_bytes: int

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.folder / WEIGHTS

    @classmethod
    def create(cls, folder: Path, name: str, sha256: str) -> Self:
        """Write the manifest of a folder that holds weights.gguf already."""
        found = (folder / WEIGHTS).stat()
        package = cls(folder, name, sha256, found.st_size)
        facts = {"format": PACKAGE_FORMAT, "name": name, "sha256": sha256, "size_bytes": found.st_size}
        write_json(folder / MANIFEST, facts | {"mtime_ns": found.st_mtime_ns})
        return package

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the manifest and see that the weights are still those that it was written for.

        They may be a link to a file that somebody edits: when its time has changed it is hashed again, which takes a
        second a gigabyte. Raises ModelFormatError: the folder is no package, or its weights were changed.
        """
        facts = read_json(folder / MANIFEST)
        remedy = "remove the model and import it again"
        if facts is None or facts.get("format") != PACKAGE_FORMAT:
            raise ModelFormatError(folder, f"{MANIFEST} is missing, damaged or of another version: {remedy}")
        try:
            package = cls(folder, str(facts["name"]), str(facts["sha256"]), int(str(facts["size_bytes"])))
            found = package.weights.stat()
            touched = found.st_mtime_ns != facts["mtime_ns"]
            if found.st_size != package.size_bytes or (touched and package._hash() != package.sha256):
                raise ModelFormatError(folder, f"{WEIGHTS} was changed since it was imported: {remedy}")
        except (KeyError, ValueError, OSError) as error:
            if isinstance(error, ModelFormatError):
                raise
            raise ModelFormatError(folder, f"the package is damaged ({error}): {remedy}") from error
        if touched:
            with suppress(OSError):  # then it is hashed again the next time
                cls.create(folder, package.name, package.sha256)
        return package

    def _hash(self) -> str:
        with self.weights.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, object] | None:
    """A JSON object from a file of ours; None when it is missing or damaged, so that it is made again."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write a JSON object, whole or not at all."""
    write_whole(path, lambda part: part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, flush it to the disk, and rename it to `path`."""
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(8)}")
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            part.unlink(missing_ok=True)
        raise
