"""What `onhand show` and `onhand doctor` say of memory, and how a model leaves that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.tiny import write_tiny

CONTEXT = 1 << 20

# The command in a process whose address space may grow by only so much, once what it is made of is there.
LIMITED = """
    import resource, sys
    from pathlib import Path
    import onhand_cpu, onhand.model
    from onhand.cli import main

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 600_000_000, resource.RLIM_INFINITY))
    main()
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to a limit of the address space")


@pytest.fixture
def model(home: Path, tmp_path: Path) -> str:
    """The path of a tiny model that was trained for a million tokens, of which each takes 1 KB of KV cache."""
    return str(write_tiny(tmp_path / "tiny.gguf", extra={"llama.context_length": CONTEXT}))


def run(*arguments: str, limited: bool = False) -> subprocess.CompletedProcess[str]:
    start = ["-c", textwrap.dedent(LIMITED)] if limited else ["-m", "onhand.cli"]
    return subprocess.run([sys.executable, *start, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_the_plan_for_a_window_is_printed_with_the_largest_that_fits(model: str) -> None:
    shown = run("show", model, "--context", "1000").stdout
    assert "with a window of 1,000 tokens: weights 0." in shown
    assert "KV cache 1.0 MB, overhead " in shown
    assert "the largest window that fits is " in shown


def test_the_plan_as_json_adds_up(model: str) -> None:
    facts = json.loads(run("show", model, "--context", "1000", "--json").stdout)
    plan = facts["plan"]
    assert plan["kv_bytes"] == 1000 * 4 * 2 * 2 * 16 * 4
    assert plan["total_bytes"] == plan["weights_bytes"] + plan["kv_bytes"] + plan["overhead_bytes"]
    assert (plan["window_tokens"], plan["slots"], plan["kv_bits"]) == (1000, 1, 32)
    assert plan["fits"] is True
    assert 1000 <= plan["largest_window_tokens"] <= CONTEXT
    assert plan["total_bytes"] <= plan["available_bytes"]
    assert facts["stored_bytes"] < plan["weights_bytes"] * 2


def test_8_bits_take_a_quarter_of_the_cache(model: str) -> None:
    floats, bits = (
        json.loads(run("show", model, "--context", "1000", "--json", *more).stdout)["plan"]
        for more in ([], ["--kv-bits", "8"])
    )
    assert bits["kv_bits"] == 8
    assert bits["kv_bytes"] * 4 == floats["kv_bytes"]


def test_a_window_that_the_model_was_not_trained_for_is_wrong_usage(model: str) -> None:
    assert run("show", model, "--context", str(CONTEXT + 1)).returncode == 2


@on_linux
def test_what_does_not_fit_is_said_with_what_does(model: str) -> None:
    shown = run("show", model, "--context", str(CONTEXT), limited=True).stdout
    assert "ulimit -v" in shown
    assert "too little: choose context_tokens=" in shown
    facts = json.loads(run("show", model, "--context", str(CONTEXT), "--json", limited=True).stdout)
    assert facts["plan"]["fits"] is False
    assert 256 < facts["plan"]["largest_window_tokens"] < CONTEXT


@on_linux
def test_asking_a_model_that_does_not_fit_leaves_with_9_and_one_line(model: str) -> None:
    done = run("ask", model, "hi", "--no-stdin", "--context", str(CONTEXT), limited=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (9, "", 1)
    for part in ("tiny takes ", "KV cache ", "leaves ", "choose context_tokens=", "--oversize"):
        assert part in done.stderr


def test_oversize_is_taken_by_the_commands_that_load(model: str) -> None:
    done = run("ask", model, "hi", "--no-stdin", "--context", "100", "--max-tokens", "1", "--oversize")
    assert done.returncode == 0, done.stderr
    assert "--oversize" in run("chat", "--help").stdout


@on_linux
def test_the_doctor_names_what_limits_memory(home: Path) -> None:
    shown = run("doctor", limited=True).stdout
    assert "available (limited by the address space (ulimit -v))" in shown
    facts = json.loads(run("doctor", "--json").stdout)
    assert 0 < facts["available_memory_bytes"] < facts["memory_bytes"]
    assert facts["memory_limited_by"]
