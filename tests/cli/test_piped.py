"""`onhand ask` with something, nothing, or nobody at the other end of stdin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def ask(
    script: list[str], *arguments: str, stdin: int | None = None, given: bytes | None = None, silence: float = 30
) -> tuple[int, str, str]:
    """Run `onhand ask` with a scripted model; exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, *script, "ask", *arguments],
        stdin=stdin,
        input=given,
        capture_output=True,
        env=os.environ | {"TEST_SILENCE_SECONDS": str(silence)},
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_what_is_piped_in_stands_before_the_text(script: list[str]) -> None:
    assert ask(script, "Summarise", given=b"one\n two\n\n") == (0, "you said one\n two\n\nSummarise\n", "")
    assert ask(script, "Summarise", given=b"one\r\n") == (0, "you said one\n\nSummarise\n", "")
    assert ask(script, "scripted", "Summarise", given=b"one") == (0, "you said one\n\nSummarise\n", "")


def test_a_file_stands_before_the_text(script: list[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes\n")
    with (tmp_path / "notes.txt").open() as notes:
        assert ask(script, "Summarise", stdin=notes.fileno()) == (0, "you said notes\n\nSummarise\n", "")


def test_a_base_model_continues_both(script: list[str]) -> None:
    assert ask(script, "--raw", "Then", given=b"Once.\n") == (0, "after Once.\n\nThen\n", "")


def test_what_comes_late_is_waited_for_once_it_began(script: list[str]) -> None:
    code = "import sys, time; print('a', flush=True); time.sleep(1.5); print('b')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        answered = ask(script, "Summarise", stdin=writer.stdout.fileno(), silence=1)
    assert answered == (0, "you said a\nb\n\nSummarise\n", "")


@pytest.mark.parametrize("given", [b"", b"\n \n"])
def test_a_pipe_with_nothing_in_it_leaves_the_text_alone(script: list[str], given: bytes) -> None:
    """A cron job gets one."""
    assert ask(script, "hi", given=given) == (0, "you said hi\n", "")


def test_without_a_pipe_the_text_is_asked_alone(script: list[str]) -> None:
    """Under systemd and `docker run` without -i, stdin is /dev/null."""
    assert ask(script, "hi", stdin=subprocess.DEVNULL) == (0, "you said hi\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes stdin")
def test_a_closed_stdin_leaves_the_text_alone(script: list[str]) -> None:
    command = ["sh", "-c", '"$@" <&-', "sh", sys.executable, *script, "ask", "hi"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "you said hi\n", "")


def test_a_pipe_that_nobody_writes_to_is_an_error_and_no_hang(script: list[str]) -> None:
    """Node's `spawn`, agents and `ssh` without -n hand one down. A guess would drop what only comes late."""
    reader, writer = os.pipe()
    try:
        code, output, error = ask(script, "hi", stdin=reader, silence=1)
        assert (code, output) == (2, "")
        assert "--no-stdin" in error
        assert "--stdin" in error
        assert ask(script, "--no-stdin", "hi", stdin=reader) == (0, "you said hi\n", "")
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.skipif(sys.platform == "win32", reason="needs socket pairs")
def test_a_socket_is_a_pipe(script: list[str]) -> None:
    """Node makes its pipes of them."""
    import socket

    here, there = socket.socketpair()
    with here, there:
        assert ask(script, "hi", stdin=there.fileno(), silence=0.5)[0] == 2
        here.sendall(b"notes\n")
        here.shutdown(socket.SHUT_WR)
        assert ask(script, "hi", stdin=there.fileno())[1] == "you said notes\n\nhi\n"


@pytest.mark.parametrize("arguments", [["--stdin", "Summarise"], ["-"], []])
def test_what_is_asked_for_is_waited_for(script: list[str], arguments: list[str]) -> None:
    code = "import time; time.sleep(1.5); print('late')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        code_, output, _ = ask(script, *arguments, stdin=writer.stdout.fileno(), silence=0.5)
    assert code_ == 0
    assert output.startswith("you said late")


def test_stdin_that_is_asked_for_may_not_be_empty(script: list[str]) -> None:
    code, output, error = ask(script, "--stdin", "Summarise", stdin=subprocess.DEVNULL)
    assert (code, output) == (2, "")
    assert "nothing" in error


def test_stdin_that_is_refused_is_left_to_who_reads_it(script: list[str], tmp_path: Path) -> None:
    """As in `while read question; do onhand ask --no-stdin "$question"; done < questions.txt`."""
    (tmp_path / "questions.txt").write_text("one\ntwo\n")
    with (tmp_path / "questions.txt").open() as questions:
        assert ask(script, "--no-stdin", "hi", stdin=questions.fileno()) == (0, "you said hi\n", "")
        assert questions.read() == "one\ntwo\n"
    assert ask(script, "--no-stdin", given=b"hi")[0] == 2
