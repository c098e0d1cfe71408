"""`onhand bench`: what it measures, prints and refuses."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onhand
from onhand.cli.bench import prompt_of
from onhand.cli.meters import energy_microjoules, joules_between, peak_memory_bytes, percentile
from support.tiny import write_tiny

COMMAND = [sys.executable, "-X", "dev", "-W", "error", "-m", "onhand.cli", "bench"]
SMALL = ["--prompt-tokens", "40", "--tokens", "6", "--rounds", "2"]


@pytest.fixture
def model(tmp_path: Path, home: Path) -> str:
    """The file of a tiny model."""
    return str(write_tiny(tmp_path / "tiny.gguf"))


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done


def test_json_has_every_measurement(model: str) -> None:
    found = json.loads(run(model, *SMALL, "--json").stdout)
    assert found.keys() == {
        "model",
        "backend",
        "threads",
        "context_tokens",
        "kv_bits",
        "rounds",
        "prompt_tokens",
        "completion_tokens",
        "load_seconds",
        "ttft_seconds",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "peak_memory_bytes",
        "joules_per_token",
    }
    assert (found["model"], found["backend"], found["threads"], found["rounds"]) == ("tiny", "cpu", None, 2)
    assert found["prompt_tokens"] == 40
    assert 1 <= found["completion_tokens"] <= 6
    assert 0 < found["ttft_seconds"]["p50"] <= found["ttft_seconds"]["p99"]
    assert found["prefill_tokens_per_second"] > 0
    assert found["peak_memory_bytes"] > 10e6
    assert found["joules_per_token"] is None or found["joules_per_token"] > 0


def test_every_prompt_is_read_anew(model: str) -> None:
    with onhand.open(model) as opened:
        prompts = [opened.tokenizer.encode(prompt_of(opened, 40, number)) for number in range(1, 30)]
    assert {len(prompt) for prompt in prompts} == {40}
    for one, other in itertools.combinations(prompts, 2):
        assert one[:2] != other[:2]


def test_the_table_names_what_was_measured_and_goes_to_stdout_alone(model: str) -> None:
    done = run(model, *SMALL)
    for label in ("first text, P50", "first text, P99", "prefill", "decode", "peak memory", "energy"):
        assert label in done.stdout
    assert "2 rounds: prompts of 40 tokens" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_threads_and_the_cache_are_the_models(model: str) -> None:
    options = ["--threads", "1", "--context", "64", "--kv-bits", "8"]
    found = json.loads(run(model, *SMALL, *options, "--json").stdout)
    assert (found["threads"], found["context_tokens"], found["kv_bits"]) == (1, 64, 8)


def test_one_token_tells_nothing_of_decoding(model: str) -> None:
    arguments = [model, "--prompt-tokens", "8", "--tokens", "1", "--rounds", "1"]
    assert json.loads(run(*arguments, "--json").stdout)["decode_tokens_per_second"] is None
    assert "unknown" in run(*arguments).stdout


@pytest.mark.parametrize(
    "options",
    [["--prompt-tokens", "125", "--tokens", "20"], ["--rounds", "0"], ["--tokens", "0"], ["--prompt-tokens", "0"]],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_wrong_usage(model: str, options: list[str]) -> None:
    done = run(model, *options, code=2)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_unknown_model_leaves_with_3(home: Path) -> None:
    assert run("nothing", code=3).stderr.startswith("error: ")


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_leaves_with_6(model: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, model, *SMALL], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 6, done
    assert done.stderr.count("\n") == 1


def _zone(root: Path, name: str, label: str, energy: int) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    for file, content in (("name", label), ("energy_uj", str(energy)), ("max_energy_range_uj", "1000000000")):
        (root / name / file).write_text(content + "\n")


def test_energy_is_that_of_the_packages_also_when_a_counter_begins_anew(tmp_path: Path) -> None:
    _zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    _zone(tmp_path, "intel-rapl:0:0", "core", 5)
    _zone(tmp_path, "intel-rapl:1", "psys", 5)
    before = energy_microjoules(tmp_path)
    _zone(tmp_path, "intel-rapl:0", "package-0", 2_000_000)
    _zone(tmp_path, "intel-rapl:1", "psys", 99_000_000)
    assert joules_between(before, energy_microjoules(tmp_path)) == pytest.approx(3)


def test_energy_is_unknown_where_no_counter_can_be_read(tmp_path: Path) -> None:
    assert energy_microjoules(tmp_path) is None
    _zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (tmp_path / "intel-rapl:0/energy_uj").unlink()
    assert energy_microjoules(tmp_path) is None
    assert joules_between(None, None) is None


def test_percentiles_are_interpolated() -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
    assert percentile(range(101), 99) == 99


def test_the_peak_of_memory_is_in_bytes() -> None:
    assert 10e6 < (peak_memory_bytes() or 0) < 100e9
