"""What the commands write: text, notes, errors, JSON, progress bars."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from onhand.types import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

# Everything that a terminal may obey or that cannot be encoded: C0 and C1 controls but tab and newline, and surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as a terminal may be shown it: control characters become U+FFFD, so that no reply steers a terminal."""
    return _UNPRINTABLE.sub("\ufffd", text.replace("\r\n", "\n"))


def prepare_streams() -> None:
    """Replace what the terminal's encoding has no character for, and input that is no text; neither is fatal."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - for the whole run
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str, end: str = "\n") -> None:
    """Write to stdout at once: as it is into a pipe, made harmless on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end=end, flush=True)


def note(text: str) -> None:
    """Tell the person at the terminal something that is not the answer; on stderr."""
    typer.secho(printable(text), err=True, dim=True)


def complain(message: str) -> None:
    """Print an error on one line of stderr."""
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)


def say_json(value: object) -> None:
    """Print a value as JSON on stdout, in ASCII where stdout has no Unicode."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not unicode))


def megabytes(size_bytes: int) -> str:
    """A size for people: MB are 1,000,000 bytes."""
    return f"{size_bytes / 1e6:,.1f} MB"


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Bars on stderr for what takes long, gone when the block ends; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bars = _Bars()
    try:
        yield bars.show
    finally:
        bars.stop()


class _Bars:
    """One bar for each kind of work, begun with the first that is told of."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        # No markup: a file's name may hold brackets.
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, TaskID] = {}

    def show(self, what: str, done: int, total: int) -> None:
        if not self._tasks:
            self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(printable(what), total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def stop(self) -> None:
        self._progress.stop()
