"""Where output cannot be written: a full device, a reader that has gone, a stderr that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from support.tiny import write_tiny

COMMAND = [sys.executable, "-X", "dev", "-W", "error", "-m", "onhand.cli"]
FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")

COMMANDS = [
    ["list"],
    ["list", "--json"],
    ["show", "tiny.gguf"],
    ["show", "--json", "tiny.gguf"],
    ["doctor"],
    ["doctor", "--json"],
    ["import", "tiny.gguf"],
    ["--help"],
    ["ask", "--help"],
    ["--version"],
]


@pytest.fixture
def folder(tmp_path: Path, home: Path) -> Path:
    """A folder with a small model's file."""
    write_tiny(tmp_path / "tiny.gguf")
    return tmp_path


def written(
    command: list[str], to: IO[str] | int, folder: Path, unbuffered: bool = False
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1" if unbuffered else ""}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=to,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
        timeout=60,
    )


@needs_full
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_behind_stdout_is_one_line_and_leaves_with_6(
    folder: Path, arguments: list[str], unbuffered: bool
) -> None:
    with FULL.open("w") as full:
        done = written([*COMMAND, *arguments], full, folder, unbuffered)
    assert done.returncode == 6, done
    assert done.stderr.startswith("error: ")
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@needs_full
@pytest.mark.parametrize("arguments", [["ask", "hi"], ["ask", "--json", "hi"], ["ask", "long"]], ids=" ".join)
def test_an_answer_to_a_full_disk_leaves_with_6(script: list[str], folder: Path, arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = written([sys.executable, "-X", "dev", *script, *arguments], full, folder)
    assert done.returncode == 6, done
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that opens stdout for reading")
def test_a_stdout_that_takes_nothing_leaves_with_6(folder: Path) -> None:
    command = ["sh", "-c", '"$@" 1</dev/null', "sh", *COMMAND, "list"]
    done = written(command, subprocess.DEVNULL, folder)
    assert done.returncode == 6, done
    assert done.stderr.count("\n") == 1


@needs_full
def test_a_bug_before_a_full_disk_is_still_one_line(folder: Path) -> None:
    code = (
        "import onhand.cli.models as m, onhand.cli, sys; m.open_store = lambda: (print('x'), {}[0]); "
        "sys.argv[1:] = ['list']; onhand.cli.main()"
    )
    with FULL.open("w") as full:
        done = written([sys.executable, "-X", "dev", "-c", code], full, folder)
    assert done.returncode == 1, done
    assert "KeyError" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_goes_away_is_told_nothing(folder: Path, arguments: list[str], unbuffered: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = written([*COMMAND, *arguments], writer, folder, unbuffered)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_reader_that_goes_away_in_the_middle_of_an_answer_is_told_nothing(script: list[str]) -> None:
    command = [sys.executable, "-X", "dev", *script, "ask", "--no-stdin", "long"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(20)
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@needs_full
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["show", "nothing"], 3), (["ask", "--context", "1", "hi"], 2), (["--nothing"], 2), (["remove", "nothing"], 3)],
    ids=str,
)
def test_an_error_that_cannot_be_told_keeps_its_code(folder: Path, arguments: list[str], code: int) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=full, stderr=full, cwd=folder, check=False
        )
    assert done.returncode == code


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes streams")
def test_closed_streams_cost_no_exit_code(folder: Path) -> None:
    for arguments, code in (["list"], 0), (["show", "nothing"], 3), (["nothing"], 2):
        command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *COMMAND, *arguments]
        assert subprocess.run(command, cwd=folder, check=False).returncode == code


def test_a_note_that_nobody_reads_costs_no_answer(script: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-X", "dev", *script, "ask", "--no-stdin", "limit"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=False, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, "cut\n")
