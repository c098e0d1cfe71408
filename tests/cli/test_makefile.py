"""What the Makefile hands to the command, with a stand-in for the environment that it would set up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone that was set up, whose `onhand` prints its arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "bootstrap.sh").write_text("exit 1\n")
    (tmp_path / "pyproject.toml").write_text("")
    onhand = tmp_path / ".venv" / "bin" / "onhand"
    onhand.parent.mkdir(parents=True)
    onhand.write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    onhand.chmod(0o755)
    (tmp_path / ".venv" / "ready-chat").touch()
    return tmp_path


def make(clone: Path, *arguments: str) -> list[str]:
    """What `onhand` was given at last."""
    # Without what `make test` hands down to a make below it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", *arguments], cwd=clone, env=environment, capture_output=True, text=True, check=True)
    handed: list[str] = json.loads(done.stdout)
    return handed


@pytest.mark.parametrize(
    "question",
    ["hello", 'what\'s "this"?', "$HOME $(shell id) ${x} $$ `id` \\ # 100% ; | &", "-1 + 1", "你好", "two\nlines"],
)
def test_a_question_reaches_the_command_as_it_was_typed(clone: Path, question: str) -> None:
    assert make(clone, "chat", f"ASK={question}") == ["ask", "--no-stdin", "--", "smollm2-135m", question]


def test_without_a_question_it_chats(clone: Path) -> None:
    assert make(clone, "chat") == ["chat", "--", "smollm2-135m"]
    assert make(clone, "chat", "MODEL=other") == ["chat", "--", "other"]
