"""What stands on stdin, read without waiting for ever where nobody writes."""

from __future__ import annotations

import os
import select
import stat
import sys
import time

import typer

from onhand.cli.console import note

NOTE_SECONDS = 2.0
SILENCE_SECONDS = 10.0


def read_stdin(wanted: bool | None, *, beside_text: bool) -> str:
    """What stands on stdin for a question, "" when it is not read.

    wanted: read it and find something, or do not; None reads what is piped in, which may be nothing. beside_text:
    there is a question without it.
    """
    if wanted is False or (not wanted and not beside_text and sys.stdin.isatty()):
        return ""
    if wanted or not beside_text:  # it was asked for, so it is waited for
        given = sys.stdin.read()
        if wanted and not given.strip():
            raise typer.BadParameter("nothing came on stdin")
        return given
    return _read_piped() if _is_piped() else ""


def _is_piped() -> bool:
    """Whether stdin is a pipe, a socket or a file: no terminal, and not the null device of a service."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _read_piped() -> str:
    """All that is piped in.

    A pipe may be one that a parent process keeps open and never writes to. Nothing tells it from one whose writer is
    slow. So a person at a terminal is told what is waited for; where nobody looks on, silence is wrong usage: to go on
    without would give a wrong answer whenever the writer is slow.
    """
    if not _begins_within(NOTE_SECONDS):
        if sys.stderr.isatty():
            note("waiting for what is piped in (--no-stdin asks without it)")
        elif not _begins_within(SILENCE_SECONDS - NOTE_SECONDS):
            raise typer.BadParameter(
                f"stdin is open and nothing came on it for {SILENCE_SECONDS:g} s: "
                "--no-stdin asks TEXT alone, --stdin waits for as long as it takes"
            )
    return sys.stdin.read()


if sys.platform == "win32":
    import ctypes
    import msvcrt

    def _begins_within(seconds: float) -> bool:
        # There `select` takes sockets alone.
        handle, waiting = ctypes.c_void_p(msvcrt.get_osfhandle(sys.stdin.fileno())), ctypes.c_ulong()
        peek = ctypes.windll.kernel32.PeekNamedPipe
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # It fails where the writer has gone, and on what is no pipe: neither is to be waited for.
            if not peek(handle, None, 0, None, ctypes.byref(waiting), None) or waiting.value:
                return True
            time.sleep(0.02)
        return False

else:

    def _begins_within(seconds: float) -> bool:
        """Whether stdin has something to read, or has ended, within this time."""
        return bool(select.select([sys.stdin], [], [], max(seconds, 0))[0])
