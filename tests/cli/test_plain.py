"""No escape is written where a terminal would not obey it, or its user wants none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)
import pexpect

from support.tiny import write_tiny

PLAIN = [{"TERM": "dumb"}, {"TERM": ""}, {"TERM": "xterm", "NO_COLOR": "1"}]


def spoken(command: list[str], settings: dict[str, str], folder: Path, keys: str = "") -> str:
    """What a command writes to a terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | settings
    with pexpect.spawn(
        sys.executable, command, encoding="utf-8", timeout=30, echo=False, env=environment, cwd=str(folder)
    ) as terminal:
        if keys:
            terminal.expect_exact("> ")
            terminal.send(keys)
        terminal.expect(pexpect.EOF)
        return str(terminal.before)


@pytest.fixture
def folder(tmp_path: Path, home: Path) -> Path:
    """A folder with a small model's file."""
    write_tiny(tmp_path / "tiny.gguf")
    return tmp_path


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("settings", PLAIN, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["doctor"],
        ["show", "tiny.gguf"],
        ["show", "nothing"],
        ["import", "tiny.gguf"],
        ["ask", "--max-tokens", "2", "tiny.gguf", "hi"],
        ["ask", "--raw", "--max-tokens", "2", "tiny.gguf", "hi"],
        ["--nothing"],
        ["pull", "smollm2-135m"],
    ],
    ids=" ".join,
)
def test_no_command_writes_an_escape(
    folder: Path, arguments: list[str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    said = spoken(["-m", "onhand.cli", *arguments], settings, folder)
    assert said.strip()
    assert "\x1b" not in said


@pytest.mark.parametrize("settings", PLAIN, ids=str)
@pytest.mark.parametrize(
    "question", ["limit", "escape", "full", "/help", "/nothing", "hi", "typo\b\bed\x01an \x05 end"]
)
def test_a_chat_writes_no_escape(script: list[str], tmp_path: Path, settings: dict[str, str], question: str) -> None:
    said = spoken([*script, "chat"], settings, tmp_path, f"{question}\r\x04")
    assert said.strip()
    assert "\x1b" not in said


def test_a_bug_writes_no_escape(folder: Path) -> None:
    code = "import onhand.cli.models as m, onhand.cli, sys; m.open_store = lambda: {}[0]; sys.argv[1:] = ['list']; "
    for settings in PLAIN:
        said = spoken(["-c", code + "onhand.cli.main()"], settings | {"ONHAND_DEBUG": "1"}, folder)
        assert "KeyError" in said
        assert "\x1b" not in said


@pytest.mark.parametrize("settings", PLAIN, ids=str)
def test_long_work_is_named_once_where_there_are_no_bars(tmp_path: Path, settings: dict[str, str]) -> None:
    code = (
        "import time; from onhand.cli import console; console.prepare_streams(); console.PATIENCE_SECONDS = 0.05\n"
        "with console.progress_bars() as progress:\n"
        "  for what in ('quick', 'slow'):\n"
        "    for done in range(1, 11):\n"
        "      progress(what, done, 10)\n"
        "      if what == 'slow': time.sleep(0.02)\n"
    )
    assert spoken(["-c", code], settings, tmp_path) == "slow ...\r\n"


def test_a_capable_terminal_gets_dim_notes(script: list[str], tmp_path: Path) -> None:
    assert "\x1b[2m" in spoken([*script, "ask", "limit"], {"TERM": "xterm"}, tmp_path)
    assert "\x1b[2m" in spoken([*script, "ask", "limit"], {"TERM": "xterm", "NO_COLOR": ""}, tmp_path)


def test_forced_colour_colours_no_pipe(script: list[str]) -> None:
    settings = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        [sys.executable, *script, "ask", "limit"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=os.environ | settings,
        check=True,
    )
    assert b"\x1b" not in done.stdout + done.stderr
