"""What the README and the guides say works: their Python runs, the README's commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.corpora import corpus

pytestmark = pytest.mark.real_model

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


GUIDES = [
    pytest.param(code, id=f"{path.stem}-{number}")
    for path in sorted((ROOT / "docs" / "guides").glob("*.md"))
    for number, code in enumerate(blocks("python", path.read_text(encoding="utf-8")))
]


COMMANDS = [line.split("   #")[0].strip() for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has pulled the default model."""
    environment = os.environ | {"ONHAND_HOME": str(tmp_path_factory.mktemp("home"))}
    add = "import sys, onhand.library as l; from pathlib import Path; "
    add += "l.ModelStore(l.data_folder()).add(Path(sys.argv[1]), 'smollm2-135m', None)"
    subprocess.run([sys.executable, "-c", add, str(corpus("smollm2"))], env=environment, check=True)
    return environment


@pytest.mark.parametrize("code", blocks("python"))
def test_the_snippets_run_and_say_something(code: str, home: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], env=home, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", GUIDES)
def test_the_snippets_of_the_guides_run(code: str, home: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], env=home, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_first_answer_is_right(home: dict[str, str]) -> None:
    code = blocks("python")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], env=home, capture_output=True, text=True, check=True, timeout=300
    )
    assert "Paris" in done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("onhand ")])
def test_the_commands_run(command: str, home: dict[str, str]) -> None:
    arguments = [sys.executable, "-m", "onhand.cli", *shlex.split(command)[1:]]
    done = subprocess.run(arguments, env=home, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "pull" in command


def test_make_knows_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert named
    assert named <= targets


def test_the_files_that_are_linked_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
