"""The registry: what is installed, what of it can be used, and what is said of the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onhand.backends import available_backends, choose_backend
from onhand.errors import BackendUnavailableError, OptionError

WORKING = """
from onhand.backends import Probe

class Toy:
    name = "toy"
    def probe(self): return Probe(available=True, detail="a toy")
    def prepare(self, package, progress=None): pass
    def load(self, package, cache, device): raise NotImplementedError

backend = Toy()
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with one backend, as pip would lay it down."""

    def lay_down(name: str, source: str, target: str = "backend", distribution: str | None = None) -> None:
        folder = tmp_path / (distribution or f"onhand-{name}")
        information = folder / f"{folder.name.replace('-', '_')}-1.0.dist-info"
        information.mkdir(parents=True)
        module = f"backend_of_{folder.name.replace('-', '_')}"
        (folder / f"{module}.py").write_text(source)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[onhand.backends]\n{name} = {module}:{target}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)  # another test's
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return lay_down


def test_an_installed_backend_is_found_and_tried_before_the_cpu(install: Install) -> None:
    install("toy", WORKING)
    assert list(available_backends()) == ["toy", "cpu"]
    assert choose_backend("auto").name == "toy"
    assert choose_backend("toy").name == "toy"


BROKEN = [
    ("import no_such_package", "No module named 'no_such_package'"),
    ("x = 1", "has no attribute 'backend'"),
    ("def f(:", "SyntaxError"),
    ("raise RuntimeError('no\\n  driver')", "RuntimeError: no driver"),
    ("raise OSError('libfoo.so: cannot open')", "libfoo.so: cannot open"),
    ("import numpy; numpy.nothing", "AttributeError"),
    ("1 / 0", "ZeroDivisionError"),
    ("{}['key']", "KeyError"),
    ("undefined", "NameError"),
    ("assert False", "AssertionError"),
    ("backend = 'a string'", "no backend"),
    ("class backend:\n  name = 'x'\n  def probe(self): ...\n  prepare = load = probe", "no backend"),
]


@pytest.mark.parametrize(("source", "reason"), BROKEN)
def test_a_backend_that_cannot_be_used_is_skipped_and_says_why(install: Install, source: str, reason: str) -> None:
    install("broken", source)
    assert choose_backend("auto").name == "cpu"
    probe = available_backends()["broken"].probe()
    assert not probe.available
    assert reason in probe.detail
    assert "onhand-broken" in probe.remedy
    with pytest.raises(BackendUnavailableError, match="onhand-broken") as caught:
        choose_backend("broken")
    assert reason in str(caught.value)


def test_an_extra_that_is_missing_names_the_command_that_installs_it(install: Install) -> None:
    install("npu", "import no_such_package", distribution="onhand")
    with pytest.raises(BackendUnavailableError, match=r'pip install "onhand\[npu\]"'):
        choose_backend("npu")


def test_why_one_was_skipped_is_told_when_nothing_else_can_run(install: Install) -> None:
    install("npu", "import no_such_package", distribution="onhand")  # in place of the real one, which has the CPU's
    install("absent", WORKING.replace("available=True", "available=False").replace("a toy", "no such chip"))
    with pytest.raises(BackendUnavailableError) as caught:
        choose_backend("auto")
    for reason in ("no such chip", "No module named 'no_such_package'", 'pip install "onhand[npu]"'):
        assert reason in str(caught.value)


@pytest.mark.parametrize("broken_first", [True, False])
def test_of_two_with_one_name_the_one_that_can_be_used_counts(install: Install, broken_first: bool) -> None:
    sources = ["1 / 0", WORKING] if broken_first else [WORKING, "1 / 0"]
    for number, source in enumerate(sources):
        install("toy", source, distribution=f"number-{number}")
    assert choose_backend("toy").probe().detail == "a toy"


def test_an_unknown_name_is_told_the_names(install: Install) -> None:
    install("broken", "1 / 0")
    with pytest.raises(OptionError, match="auto or one of broken, cpu"):
        choose_backend("nothing")


def test_a_backend_that_cannot_be_used_cannot_be_loaded(install: Install) -> None:
    install("broken", "raise RuntimeError('no driver')")
    backend = available_backends()["broken"]
    with pytest.raises(BackendUnavailableError, match="no driver"):
        backend.prepare(None)  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailableError, match="no driver"):
        backend.load(None, None, None)  # type: ignore[arg-type]


def test_the_doctor_lists_what_cannot_be_used(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    install("broken", "raise RuntimeError('no driver')")
    command = [sys.executable, "-m", "onhand.cli", "doctor"]
    facts = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    (broken,) = [backend for backend in facts["backends"] if backend["name"] == "broken"]
    assert not broken["available"]
    assert "RuntimeError: no driver" in broken["detail"]
    assert "onhand-broken" in broken["remedy"]
    assert any(backend["name"] == "cpu" and backend["available"] for backend in facts["backends"])
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "backend broken: cannot run here: " in shown
    assert "no driver" in shown
