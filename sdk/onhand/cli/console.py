"""What the commands write: text, notes, errors, JSON, progress bars."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import typer

from onhand.errors import StorageError
from onhand.types import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

PATIENCE_SECONDS = 1.0

# Everything that a terminal may obey or that cannot be encoded: C0 and C1 controls but tab and newline, and surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as a terminal may be shown it: control characters become U+FFFD, so that no reply steers a terminal."""
    return _UNPRINTABLE.sub("\ufffd", text.replace("\r\n", "\n"))


def prepare_streams() -> None:
    """Make the streams such that nothing about them is fatal but a stdout that takes nothing.

    What the terminal's encoding has no character for, and input that is no text, is replaced. NO_COLOR and a terminal
    of no known kind are treated as TERM=dumb, by rich and readline too: no escape sequence is written.
    """
    if os.environ.get("NO_COLOR") or (sys.platform != "win32" and not os.environ.get("TERM")):
        os.environ["TERM"] = "dumb"
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - for the whole run
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # as Python does: it stays open when another takes its place
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper) and not isinstance(sys.stderr, _Expendable):
        sys.stderr = _Expendable(sys.stderr.buffer, sys.stderr.encoding, "replace", line_buffering=True)


class _Expendable(io.TextIOWrapper):
    """A stderr that takes what cannot be written: it could be told nobody, and must cost no answer and no exit code."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _give_up(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _give_up(self)


def _give_up(stream: TextIO) -> None:
    """Let the null device take what is still buffered, and what comes: at exit Python would complain of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def escapes_allowed() -> bool:
    """Whether a terminal may be sent escape sequences."""
    return os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def _stdout_errors() -> Iterator[None]:
    """Turn what stdout refuses into a StorageError; a BrokenPipeError, whose reader has gone, is told nobody."""
    try:
        yield
    except OSError as error:
        if error.errno == (errno.EINVAL if sys.platform == "win32" else errno.EPIPE):
            raise BrokenPipeError(errno.EPIPE, "whoever read stdout has gone") from error
        raise StorageError(f"stdout cannot be written to: {error.strerror or error}") from error


def say(text: str, end: str = "\n") -> None:
    """Write to stdout at once: as it is into a pipe, made harmless on a terminal. Raises StorageError."""
    with _stdout_errors():
        print(printable(text) if sys.stdout.isatty() else text, end=end, flush=True)


def finish_stdout() -> OSError | None:
    """Write out what is buffered. The error that says what became of it, when it did not arrive."""
    try:
        with _stdout_errors():
            sys.stdout.flush()
    except OSError as error:
        _give_up(sys.stdout)
        return error
    return None


def note(text: str) -> None:
    """Tell the person at the terminal something that is not the answer; on stderr."""
    shown = printable(text)
    typer.echo(typer.style(shown, dim=True) if escapes_allowed() else shown, err=True)  # styled on a terminal alone


def complain(message: str) -> None:
    """Print an error on one line of stderr."""
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)


def say_json(value: object) -> None:
    """Print a value as JSON on stdout, in ASCII where stdout has no Unicode. Raises StorageError."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    with _stdout_errors():
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
    if not escapes_allowed():
        yield _Lines().show
        return
    bars = _Bars()
    try:
        yield bars.show
    finally:
        bars.stop()


class _Lines:
    """One line for each kind of work that takes longer than PATIENCE_SECONDS, for a terminal that cannot draw bars."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._told: set[str] = set()

    def show(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._begun.setdefault(what, now) > PATIENCE_SECONDS and what not in self._told:
            self._told.add(what)
            note(f"{what} ...")


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
