"""The real command, run as a user's shell runs it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "onhand.cli"]


def run(*arguments: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `onhand` with its streams piped and check what every run keeps to."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return done


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_help_names_every_command(home: Path) -> None:
    shown = run("--help").stdout
    for command in ("chat", "ask", "pull", "import", "list", "remove", "show", "doctor", "audit", "bench"):
        assert f"  {command} " in shown
    assert not home.exists()


def test_help_waits_for_no_heavy_package() -> None:
    code = "import sys, onhand.cli; print(sorted(sys.modules.keys() & set(sys.argv[1:])))"
    heavy = ["numpy", "onnxruntime", "tokenizers", "jinja2", "rich"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == []


def test_the_version_is_the_distributions() -> None:
    assert run("--version").stdout.startswith("onhand 0.")


@pytest.mark.parametrize("command", [["ask", "smolm2-135m", "hi"], ["chat", "smolm2-135m"], ["show", "smolm2-135m"]])
def test_an_unknown_model_suggests_the_nearest(home: Path, command: list[str]) -> None:
    message = error_of(run(*command, code=3))
    assert "did you mean smollm2-135m?" in message


def test_the_default_model_names_the_command_that_fetches_it(home: Path) -> None:
    assert "onhand pull smollm2-135m" in error_of(run("ask", "hi", code=3))


def test_removing_what_is_not_here_is_an_error(home: Path) -> None:
    error_of(run("remove", "nothing", "--yes", code=3))


def test_pulling_what_is_not_in_the_catalogue_names_what_is(home: Path) -> None:
    assert "smollm2-135m" in error_of(run("pull", "nothing", code=3))


def test_a_file_that_is_no_model_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    assert "bad.gguf" in error_of(run("import", str(tmp_path / "bad.gguf"), code=4))
    error_of(run("import", str(tmp_path / "missing.gguf"), code=3))
    error_of(run("show", str(tmp_path / "bad.gguf"), code=4))


def test_a_name_of_a_file_cannot_steer_the_terminal(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "\x1b]0;owned\x07.gguf"
    path.write_bytes(b"not a model")
    assert "\ufffd]0;owned\ufffd" in error_of(run("import", str(path), code=4))


@pytest.mark.usefixtures("online")
def test_a_failed_download_is_one_line(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    error_of(run("pull", "smollm2-135m", code=5))
    assert {path.name for path in home.rglob("*")} == {"models", ".lock"}


def test_a_home_that_cannot_be_made_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "file" / "home"))
    error_of(run("list", code=6))


@pytest.mark.parametrize(
    "option", [["--temperature", "-1"], ["--top-p", "2"], ["--max-tokens", "-5"], ["--context", "1"]]
)
def test_a_setting_out_of_its_range_is_wrong_usage(home: Path, option: list[str]) -> None:
    assert "it takes" in error_of(run("ask", *option, "hi", code=2))


@pytest.mark.parametrize("arguments", [["--nothing"], ["ask", ""], ["nothing"], ["import"], ["ask", "a", "b", "c"]])
def test_wrong_usage_leaves_with_2(home: Path, arguments: list[str]) -> None:
    run(*arguments, code=2)


def test_the_list_names_what_can_be_pulled(home: Path) -> None:
    assert "onhand pull smollm2-135m" in run("list").stdout
    (model,) = json.loads(run("list", "--json").stdout)
    assert model.keys() == {"name", "installed", "size_bytes", "sha256"}
    assert (model["name"], model["installed"]) == ("smollm2-135m", False)


def test_the_doctor_tells_of_the_machine_and_of_every_backend(home: Path) -> None:
    facts = json.loads(run("doctor", "--json").stdout)
    assert facts["cpus"] >= facts["usable_cpus"] >= 1
    assert facts["models_folder"] == str(home / "models")
    (cpu,) = [backend for backend in facts["backends"] if backend["name"] == "cpu"]
    assert cpu["available"]
    assert "backend cpu" in run("doctor").stdout


def test_a_bug_is_one_line_and_tells_nothing_of_what_was_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, onhand.cli.models as m; m.open_store = lambda: {}['a secret']; import onhand.cli; sys.argv[1:] = "
    )
    code += "['list']; onhand.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "KeyError" in done.stderr
    assert "secret" not in done.stderr
    assert done.stderr.count("\n") == 1
    monkeypatch.setenv("ONHAND_DEBUG", "1")
    assert "Traceback" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
