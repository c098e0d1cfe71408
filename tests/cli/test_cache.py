"""What `onhand ask` and `onhand chat` take about the cache, on a tiny model: BOS, 22 ids of scaffold and text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.tiny import TOKENS, write_tiny

ASK = ("Hello there", "--no-stdin", "--temperature", "0", "--json")


@pytest.fixture
def model(home: Path, tmp_path: Path) -> str:
    """The file of a tiny model."""
    return str(write_tiny(tmp_path / "tiny.gguf"))


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onhand.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done
    return done


def ask(model: str, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run("ask", model, *ASK, *options).stdout)
    return answer


def test_a_window_that_is_full_slides_or_ends_the_reply(model: str) -> None:
    slid = ask(model, "--context", "40", "--max-tokens", "60")
    assert slid["usage"]["evicted_tokens"] > 0
    ended = ask(model, "--context", "40", "--max-tokens", "60", "--overflow", "error")
    assert ended["usage"]["evicted_tokens"] == 0
    assert ended["finish_reason"] == "length"
    assert ended["usage"]["prompt_tokens"] + ended["usage"]["completion_tokens"] == 40


def test_a_draft_changes_nothing(model: str, tmp_path: Path) -> None:
    draft = str(write_tiny(tmp_path / "draft.gguf", seed=1))
    assert ask(model, "--draft", draft)["text"] == ask(model)["text"]


def test_a_draft_of_another_tokenizer_is_refused(model: str, tmp_path: Path) -> None:
    tokens = [TOKENS[1], TOKENS[0], *TOKENS[2:], "ab"]
    other = str(write_tiny(tmp_path / "other.gguf", extra={"tokenizer.ggml.tokens": tokens}))
    assert "same tokenizer" in run("ask", model, *ASK, "--draft", other, code=2).stderr


def test_8_bits_answer(model: str) -> None:
    assert ask(model, "--kv-bits", "8", "--max-tokens", "5")["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("options", [("--kv-bits", "4"), ("--overflow", "forget")], ids=" ".join)
def test_what_is_not_offered_is_wrong_usage_that_names_what_is(model: str, options: tuple[str, str]) -> None:
    said = run("ask", model, *ASK, *options, code=2).stderr
    assert "'32'" in said or "'recompute'" in said
