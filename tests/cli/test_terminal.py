"""The real command in a real terminal, with a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)
import pexpect


def start(script: list[str], *arguments: str, term: str = "dumb") -> pexpect.spawn[str]:
    environment = os.environ | {"TERM": term, "PYTHONWARNINGS": "error"}
    environment.pop("NO_COLOR", None)
    command = [*script, *arguments]
    return pexpect.spawn(sys.executable, command, encoding="utf-8", timeout=20, echo=False, env=environment)


@pytest.fixture
def chat(script: list[str]) -> Iterator[pexpect.spawn[str]]:
    """`onhand chat`, waiting for its first question."""
    with start(script, "chat") as terminal:
        terminal.expect_exact("> ")
        yield terminal


def leave(terminal: pexpect.spawn[str], code: int = 0) -> None:
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == code


def test_a_question_is_answered_and_ctrl_d_leaves(chat: pexpect.spawn[str]) -> None:
    chat.sendline("hello")
    chat.expect_exact("you said hello\r\n> ")
    chat.sendeof()
    leave(chat)


def test_what_is_pasted_is_one_question_however_many_lines(script: list[str]) -> None:
    with start(script, "chat", term="xterm") as terminal:
        terminal.expect_exact("> ")
        terminal.send("\x1b[200~one\ntwo\x1b[201~\r")
        terminal.expect("you said one\r*\ntwo")
        terminal.sendline("said?")
        terminal.expect_exact("heard 3")


def test_a_command_that_is_not_there_is_not_asked_of_the_model(chat: pexpect.spawn[str]) -> None:
    chat.sendline("/foo")
    chat.expect("no command /foo")
    chat.sendline("said?")
    chat.expect("heard 1")


def test_ctrl_c_stops_the_reply_and_not_the_program(chat: pexpect.spawn[str]) -> None:
    chat.sendline("long")
    chat.expect_exact("word20 ")
    chat.sendintr()
    chat.expect_exact("\r\n> ", timeout=2)
    assert "word2999" not in chat.before
    chat.sendline("said?")
    chat.expect_exact("heard 3: ['long', 'word0 word1', 'said?']")  # what was said is kept
    chat.sendline("/quit")
    leave(chat)


def test_an_impatient_ctrl_c_stops_the_reply_alone(chat: pexpect.spawn[str]) -> None:
    chat.sendline("long")
    chat.expect_exact("word20 ")
    for _ in range(5):
        chat.sendintr()
    chat.expect_exact("> ")
    chat.sendline("still here")
    chat.expect_exact("you said still here")


def test_ctrl_c_stops_a_prompt_that_is_being_read(script: list[str]) -> None:
    with start(script, "chat", term="xterm") as chat:
        chat.expect_exact("> ")
        chat.sendline("read")
        chat.expect_exact("reading")  # the bar
        chat.sendintr()
        chat.expect_exact("> ", timeout=2)
        chat.sendline("hello")
        chat.expect_exact("you said hello")


def test_ctrl_c_twice_at_the_prompt_leaves(chat: pexpect.spawn[str]) -> None:
    chat.sendintr()
    chat.expect_exact("Ctrl-C once more leaves")
    chat.expect_exact("> ")
    chat.sendintr()
    leave(chat)


def test_reset_forgets_what_was_said(chat: pexpect.spawn[str]) -> None:
    chat.sendline("hello")
    chat.expect_exact("you said hello")
    chat.sendline("/reset")
    chat.expect_exact("> ")
    chat.sendline("said?")
    chat.expect_exact("heard 1: ['said?']")


def test_a_full_context_is_told_and_the_conversation_goes_on(chat: pexpect.spawn[str]) -> None:
    chat.sendline("full")
    chat.expect_exact("error: the prompt has 9000 tokens and the context holds 8192")
    chat.expect_exact("> ")
    chat.sendline("hello")
    chat.expect_exact("you said hello")


def test_a_reply_cannot_steer_the_terminal(chat: pexpect.spawn[str]) -> None:
    chat.sendline("escape")
    chat.expect_exact("\ufffd]0;owned\ufffdend")


def test_a_reply_that_was_cut_by_a_limit_says_so(chat: pexpect.spawn[str]) -> None:
    chat.sendline("limit")
    chat.expect_exact("(stopped by the limit after 1 tokens)")


def test_an_interrupted_question_leaves_with_130(script: list[str]) -> None:
    with start(script, "ask", "long") as terminal:
        terminal.expect_exact("word20 ")
        terminal.sendintr()
        leave(terminal, 130)
        assert "Traceback" not in terminal.before


def test_piped_lines_are_questions_and_replies_stand_alone(script: list[str]) -> None:
    done = piped([*script, "chat"], "one\n\n  \nsaid?\n")
    assert done == (0, "you said one\nheard 3: ['one', 'you said on', 'said?']\n", "")


def test_into_a_pipe_a_reply_goes_as_it_is(script: list[str]) -> None:
    assert piped([*script, "ask", "escape"]) == (0, "\x1b]0;owned\x07end\n", "")


def test_what_is_piped_in_is_waited_for_and_a_person_at_a_terminal_is_told(script: list[str]) -> None:
    terminal = pexpect.spawn(
        "sh",
        ["-c", '(sleep 3; echo late) | TEST_SILENCE_SECONDS=1 "$@"', "sh", sys.executable, *script, "ask", "hi"],
        encoding="utf-8",
        timeout=20,
        env=os.environ | {"TERM": "dumb"},
    )
    with terminal:
        terminal.expect_exact("--no-stdin")
        terminal.expect_exact("you said late")
        leave(terminal)


@pytest.mark.parametrize("arguments", [["ask"], ["ask", "-"], ["ask", "scripted", "-"]])
def test_a_question_can_be_piped_in(script: list[str], arguments: list[str]) -> None:
    assert piped([*script, *arguments], "hi there") == (0, "you said hi there\n", "")


def test_a_question_may_begin_with_a_dash_after_two_dashes(script: list[str]) -> None:
    assert piped([*script, "ask", "--", "-1 + 1"]) == (0, "you said -1 + 1\n", "")


def test_bytes_that_are_no_text_do_no_harm(script: list[str]) -> None:
    for arguments, given in ([b"ask", b"caf\xe9"], b""), ([b"ask"], b"caf\xe9"), ([b"chat"], b"caf\xe9\n"):
        command = [os.fsencode(part) for part in [sys.executable, *script]] + list(arguments)
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"you said caf")


def test_an_answer_as_json_is_one_object(script: list[str]) -> None:
    code, output, _ = piped([*script, "ask", "--json", "hi"])
    assert code == 0
    assert json.loads(output) == {
        "model": "scripted",
        "text": "you said hi",
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "completion_tokens": 1,
            "evicted_tokens": 0,
            "guessed_tokens": 0,
            "prefill_seconds": 0,
            "decode_seconds": 0,
        },
        "seed": 7,
        "stop_string": None,
        "thinking": "",
        "tool_calls": [],
        "problem": "",
    }


def test_an_error_while_piped_leaves_with_its_code(script: list[str]) -> None:
    code, output, error = piped([*script, "chat"], "full\nnever asked\n")
    assert (code, output) == (7, "")
    assert error.startswith("error: the prompt has 9000 tokens")


def piped(command: list[str], given: str = "") -> tuple[int, str, str]:
    """Run with all streams piped; exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, *command],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr
