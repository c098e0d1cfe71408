"""The store of models on this device: one folder a model, complete or not there at all.

A model is made in a folder `.part-*` and renamed into place; it is removed by renaming it to `.trash-*` first. Every
change holds the store's lock, so a leftover of either kind that is found under the lock belongs to a process that died.
"""

from __future__ import annotations

import difflib
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onhand.errors import ModelExistsError, ModelFormatError, ModelNotFoundError, OptionError
from onhand.formats.package import WEIGHTS, ModelPackage
from onhand.library.catalog import CATALOG, find_entry
from onhand.library.files import hash_file, link_or_copy, storage_errors
from onhand.locks import exclusive, exclusive_if_free
from onhand.types import Progress

MAX_NAME_CHARS = 64
NAME_PATTERN = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
NAME_RULE = f"1 to {MAX_NAME_CHARS} of a-z 0-9 . _ -, beginning with a letter or a digit"
# Windows opens a device when a file has one of these names, whatever follows a dot.
DEVICE_NAMES = {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)}
SUGGESTIONS = 2


def check_name(name: str) -> str:
    """The name, if it may name a model. Raises OptionError; no name that passes can leave the store's folder."""
    if not NAME_PATTERN.fullmatch(name) or name.endswith(".") or name.partition(".")[0] in DEVICE_NAMES:
        raise OptionError("model name", name, NAME_RULE)
    return name


class ModelStore:
    """The models of one data folder, which lie in its subfolder `models`."""

    def __init__(self, home: Path) -> None:
        """Open the store and clear away what a killed process left in it. The subfolder need not exist yet."""
        self.folder = home / "models"
        if self._leftovers():
            # A store that cannot be written to can still be read; whoever changes it hears what is wrong.
            with suppress(OSError), exclusive_if_free(self._lock) as held:
                if held:
                    self._sweep()

    def names(self) -> tuple[str, ...]:
        """The name of every model here, in order."""
        if not self.folder.is_dir():
            return ()
        with storage_errors(f"{self.folder} cannot be read"):
            folders = [path.name for path in self.folder.iterdir() if path.is_dir()]
        return tuple(sorted(name for name in folders if NAME_PATTERN.fullmatch(name)))

    def list(self) -> tuple[ModelPackage, ...]:
        """Every model here that can be opened, in the order of their names."""
        found = []
        for name in self.names():
            try:
                found.append(ModelPackage.open(self.folder / name))
            except ModelFormatError:
                continue  # `get` says what is wrong with it, and `onhand doctor` names it
        return tuple(found)

    def get(self, name: str) -> ModelPackage:
        """The model of that name.

        Raises ModelNotFoundError with the nearest names and what to run, ModelFormatError when its folder is damaged.
        """
        if name not in self.names():
            raise self._not_found(name)
        return ModelPackage.open(self.folder / name)

    def add(self, path: Path, name: str | None = None, progress: Progress | None = None) -> ModelPackage:
        """Take a GGUF file into the store: hard-linked where the disk allows it, copied otherwise.

        name: None makes one of the file's name. The file is checked before anything is written. The same content under
        the same name is left as it is. Raises OptionError, ModelFormatError, ModelExistsError, StorageError.
        """
        name = check_name(name_of(path) if name is None else name)
        check_gguf(path)
        with self.changing(progress):
            return self.install(path, name, progress)

    def remove(self, name: str, progress: Progress | None = None) -> None:
        """Delete a model and all that was compiled from it. Raises ModelNotFoundError, StorageError."""
        if name not in self.names():
            raise self._not_found(name)
        with self.changing(progress):
            if name not in self.names():
                return  # another process was quicker
            trash = self.folder / f".trash-{secrets.token_hex(8)}"
            (self.folder / name).rename(trash)
            shutil.rmtree(trash)

    @contextmanager
    def changing(self, progress: Progress | None = None) -> Iterator[None]:
        """Hold the store's lock, waiting for it if need be. What the disk refuses meanwhile becomes a StorageError."""
        with storage_errors(f"{self.folder} cannot be changed"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(self._lock, progress):
                self._sweep()
                yield

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A new folder on the store's disk, gone when the block ends. Only while `changing`."""
        part = self.folder / f".part-{secrets.token_hex(8)}"
        part.mkdir(mode=0o700)
        try:
            yield part
        finally:
            shutil.rmtree(part)

    def install(self, path: Path, name: str, progress: Progress | None = None) -> ModelPackage:
        """Put a GGUF file that was checked into its place. Only while `changing`. Raises as `add`."""
        place = self.folder / name
        if name in self.names():
            present = ModelPackage.open(place)
            same = path.samefile(present.weights)  # linked from there: no need to read gigabytes to know
            if not same and hash_file(path, progress) != present.sha256:
                raise ModelExistsError(name)
            return present
        with self.work_folder() as part:
            made = part / name
            made.mkdir(mode=0o700)
            sha256 = link_or_copy(path, made / WEIGHTS, progress)
            ModelPackage.create(made, name, sha256)
            made.rename(place)
        return ModelPackage.open(place)

    def _not_found(self, name: str) -> ModelNotFoundError:
        if find_entry(name) is not None:
            return ModelNotFoundError(name, f"(run: onhand pull {name})")
        known = sorted({*self.names(), *(entry.name for entry in CATALOG)})
        nearest = difflib.get_close_matches(name.lower(), known, n=SUGGESTIONS, cutoff=0.5)
        return ModelNotFoundError(name, "(run: onhand list)", nearest)

    @property
    def _lock(self) -> Path:
        return self.folder / ".lock"

    def _leftovers(self) -> tuple[Path, ...]:
        return (*self.folder.glob(".part-*"), *self.folder.glob(".trash-*"))

    def _sweep(self) -> None:
        for path in self._leftovers():
            shutil.rmtree(path)


def check_gguf(path: Path) -> None:
    """Raise ModelFormatError unless the file is a GGUF of an architecture that we can run. Reads its header alone."""
    # Here and not above: numpy takes a fifth of a second that `onhand list` has no use for.
    from onhand.formats.gguf import GgufFile
    from onhand.formats.gguf_spec import read_spec

    with GgufFile.open(path) as file:
        read_spec(file)


def name_of(file: Path) -> str:
    """A model's name made of a file's: `SmolLM2 Instruct.Q4_1.gguf` becomes `smollm2-instruct.q4_1`."""
    stem = file.name.lower().removesuffix(".gguf")
    return re.sub(r"[^a-z0-9._]+", "-", stem).strip("._-")[:MAX_NAME_CHARS].rstrip(".") or "model"
