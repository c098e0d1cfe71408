"""Runs the user's pip with a line in the ledger for each of its connections: it is Python, so the hook sees them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onhand.privacy.guard import recorded, write_down

# onhand's folder comes last: it is found wherever the parent found it, and shadows nothing of pip's.
_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from onhand.privacy.pip import run; run()"


def recorded_pip_download(into: Path, arguments: Sequence[str], *, purpose: str, by: str) -> list[str]:
    """The command that is `pip download` into a folder, in a process of its own. purpose, by: as in NetworkUse."""
    # -P: a pip.py in the current folder must not be taken for pip.
    python = [sys.executable, "-P", "-c", _RUN, str(Path(__file__).parents[2])]
    return [*python, purpose, by, str(into), "download", "-d", str(into), *arguments]


def run() -> None:
    """The other process's part: sys.argv holds what `recorded_pip_download` put there."""
    purpose, by, into = (sys.argv.pop(1) for _ in range(3))
    with recorded(purpose, by) as uses:
        try:
            runpy.run_module("pip", run_name="__main__", alter_sys=True)
        finally:  # pip leaves with SystemExit
            connections = [use for use in uses if use.action == "connect"]
            size = sum(path.stat().st_size for path in Path(into).glob("*"))
            if connections and size:  # a file from a folder came over no network
                write_down(replace(connections[-1], action="receive", size_bytes=size))
