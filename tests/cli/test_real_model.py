"""The real command with a real model, in a real terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)
import pexpect

from support.corpora import corpus

pytestmark = pytest.mark.real_model

COMMAND = [sys.executable, "-m", "onhand.cli"]
MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with SmolLM2 in it."""
    folder = tmp_path_factory.mktemp("home")
    run(folder, "import", str(corpus("smollm2")), "--name", MODEL)
    return folder


def run(home: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ONHAND_HOME": str(home)}
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done
    return done


def start(home: Path, *arguments: str) -> pexpect.spawn[str]:
    environment = os.environ | {"ONHAND_HOME": str(home), "TERM": "dumb"}
    command = [*COMMAND[1:], *arguments]
    return pexpect.spawn(COMMAND[0], command, encoding="utf-8", timeout=60, echo=False, env=environment)


def test_an_answer_as_json_counts_its_tokens_and_repeats_with_its_seed(home: Path) -> None:
    first = json.loads(run(home, "ask", "--json", "--max-tokens", "8", "Name a colour.").stdout)
    assert first["model"] == MODEL
    assert 1 <= first["usage"]["completion_tokens"] <= 8
    options = ["--json", "--max-tokens", "8", "--seed", str(first["seed"])]
    assert json.loads(run(home, "ask", *options, "Name a colour.").stdout)["text"] == first["text"]


def test_an_answer_is_right(home: Path) -> None:
    assert "4" in run(home, "ask", "--temperature", "0", "--max-tokens", "20", "What is 2+2?").stdout


@pytest.mark.parametrize(
    ("question", "script"),
    [("Write a long story about the sea.", "[A-Za-z]"), ("你好，请介绍一下北京。", "[\u4e00-\u9fff]")],
    ids=["English", "Chinese"],
)
def test_the_first_text_comes_long_before_the_reply_is_complete(home: Path, question: str, script: str) -> None:
    with start(home, "ask", "--temperature", "0", "--max-tokens", "80", question) as terminal:
        terminal.expect(script)
        first = len(terminal.before) + 1
        assert terminal.isalive()
        arrivals = 0
        rest = ""
        while True:
            try:
                piece = terminal.read_nonblocking(size=4096, timeout=60)
            except pexpect.EOF:
                break
            arrivals += 1
            rest += piece
    assert len(rest) > 2 * first
    assert arrivals > 20
    assert len(re.findall(script, rest)) > 20


def test_ctrl_c_stops_a_real_reply_and_the_conversation_goes_on(home: Path) -> None:
    with start(home, "chat", "--temperature", "0", "--max-tokens", "500") as terminal:
        terminal.expect_exact("> ")
        terminal.sendline("Write a very long story about the sea.")
        terminal.expect("[A-Za-z]+ [A-Za-z]+ [A-Za-z]+")
        terminal.sendintr()
        terminal.expect_exact("\r\n> ", timeout=5)
        terminal.sendline("What is the capital of France?")
        terminal.expect("[A-Za-z]+")
        terminal.expect_exact("\r\n> ")
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0


def test_show_tells_what_the_model_takes_at_a_window(home: Path) -> None:
    facts = json.loads(run(home, "show", MODEL, "--context", "1000", "--json").stdout)
    assert facts["architecture"] == "llama"
    assert facts["parameters"] == pytest.approx(134.5e6, rel=0.01)
    assert facts["plan"]["kv_bytes"] == 2 * 30 * 3 * 64 * 4 * 1000
    assert facts["stored_bytes"] < facts["plan"]["weights_bytes"] < 1.5 * facts["stored_bytes"]
    assert sum(facts["quantization"].values()) == pytest.approx(1)
    assert "Q4_1" in run(home, "show").stdout
