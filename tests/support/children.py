"""Python code in a process of its own, as a user's program would be."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_python(*code: str, online: bool = True, **environment: str) -> str:
    """What the pieces of code print, run as one; it must end well. online: without the suite's guard."""
    inherited = {name: value for name, value in os.environ.items() if not (online and name == "ONHAND_OFFLINE")}
    command = [sys.executable, "-W", "error", "-c", "".join(textwrap.dedent(piece) for piece in code)]
    done = subprocess.run(
        command, env=inherited | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
