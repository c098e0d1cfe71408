"""Memory plans: what fits, what is advised, and that nothing is loaded that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import onhand
import onhand.model
import onhand.planning
from onhand.backends import MemoryNeeds, Probe
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand.formats.spec import DecoderSpec
from onhand.memory import FreeMemory
from onhand.options import CacheOptions, DeviceOptions
from onhand.planning import TOKENIZER_BYTES_PER_TOKEN, check, plan_memory
from onhand.types import MemoryPlan, Progress
from onhand_cpu import CpuRuntime
from onhand_cpu import backend as cpu
from support.tiny import VOCAB, write_tiny

CONTEXT = 1 << 20
WEIGHTS, TOKEN = 1_000_000, 1000
OVERHEAD = VOCAB * TOKENIZER_BYTES_PER_TOKEN


class Plain:
    """A backend that makes no plans. done: what was asked of it."""

    name = "plain"

    def __init__(self) -> None:
        self.done: list[str] = []

    def probe(self) -> Probe:
        return Probe(available=True, detail="")

    def prepare(self, package: ModelPackage, progress: Progress | None = None) -> None:
        self.done.append("prepare")
        cpu.prepare(package, progress)

    def load(self, package: ModelPackage, cache: CacheOptions, device: DeviceOptions) -> CpuRuntime:
        self.done.append("load")
        return cpu.load(package, replace(cache, context_tokens=64), device)


class Planning(Plain):
    """A backend whose models take WEIGHTS, and TOKEN bytes a token at 32 bits."""

    def memory_needs(
        self, file: GgufFile, spec: DecoderSpec, *, window_tokens: int, slots: int, kv_bits: int
    ) -> MemoryNeeds:
        kv_bytes = slots * window_tokens * TOKEN * kv_bits // 32
        return MemoryNeeds(weights_bytes=WEIGHTS, kv_bytes=kv_bytes, overhead_bytes=0, mapped_bytes=77)


Leave = Callable[[int | None], None]


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Leave:
    """Makes the machine leave so many bytes beside weights and overhead, or not say it."""

    def only(size: int | None) -> None:
        left = None if size is None else WEIGHTS + OVERHEAD + size
        monkeypatch.setattr(onhand.planning, "free_memory", lambda mapped_bytes: FreeMemory(left, "the machine"))

    return only


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model that was trained for a million tokens."""
    return write_tiny(tmp_path / "tiny.gguf", extra={"llama.context_length": CONTEXT})


def planned(model: Path, backend: Plain, cache: dict[str, int], beside: int = 0) -> MemoryPlan | None:
    with GgufFile.open(model) as file:
        options = CacheOptions(**cache)  # type: ignore[arg-type]
        return plan_memory(backend, file, read_spec(file), options, name="tiny", beside=beside)


def plan_of(model: Path, **cache: int) -> MemoryPlan:
    plan = planned(model, Planning(), cache)
    assert plan is not None
    return plan


def test_a_plan_adds_up(model: Path, leave: Leave) -> None:
    leave(3_000_000)
    plan = plan_of(model, context_tokens=1000, slots=2)
    assert (plan.weights_bytes, plan.kv_bytes, plan.overhead_bytes) == (WEIGHTS, 2_000_000, OVERHEAD)
    assert plan.total_bytes == WEIGHTS + 2_000_000 + OVERHEAD
    assert (plan.fits, plan.remedy, plan.limited_by) == (True, "", "the machine")
    assert (plan.window_tokens, plan.slots, plan.kv_bits) == (1000, 2, 32)
    assert plan.largest_window_tokens == 1500


def test_the_default_window_is_planned_for_when_none_is_named(model: Path, leave: Leave) -> None:
    leave(None)
    assert plan_of(model).window_tokens == 8192


@pytest.mark.parametrize("left", [0, 999, 1000, 1_234_567, 10**12])
@pytest.mark.parametrize("slots", [1, 3])
def test_the_largest_window_fits_and_one_token_more_does_not(model: Path, leave: Leave, left: int, slots: int) -> None:
    leave(left)
    largest = plan_of(model, slots=slots).largest_window_tokens
    assert largest == min(left // (slots * TOKEN), CONTEXT)
    if largest >= 8:
        assert plan_of(model, slots=slots, context_tokens=largest).fits
    if 8 <= largest < CONTEXT:
        assert not plan_of(model, slots=slots, context_tokens=largest + 1).fits


def test_what_is_not_known_is_never_refused(model: Path, leave: Leave) -> None:
    leave(None)
    plan = plan_of(model, context_tokens=CONTEXT)
    assert (plan.fits, plan.available_bytes, plan.largest_window_tokens) == (None, None, None)
    check(plan, "tiny")
    check(None, "tiny")


def test_a_draft_counts_besides(model: Path, leave: Leave) -> None:
    leave(1_000_000)
    plan = planned(model, Planning(), {"context_tokens": 501}, beside=500_000)
    assert plan is not None
    assert (plan.fits, plan.largest_window_tokens) == (False, 500)


@pytest.mark.parametrize(
    ("left", "cache", "remedy"),
    [
        (3_000_000, {"context_tokens": 4096}, "choose context_tokens=2816 or kv_bits=8"),
        (3_000_000, {"context_tokens": 16000}, "choose context_tokens=2816"),
        (3_000_000, {"context_tokens": 4096, "kv_bits": 8, "slots": 4}, "choose context_tokens=2816 or slots=2"),
        (3_000_000, {"context_tokens": 1024, "slots": 8}, "choose context_tokens=256 or slots=2 or kv_bits=8"),
        (400_000, {"context_tokens": 8192, "slots": 8}, "choose context_tokens=1536 with slots=1 and kv_bits=8"),
        (100_000, {"context_tokens": 8192}, "choose context_tokens=256 with kv_bits=8"),
        (10_000, {"context_tokens": 8192}, "no window fits: choose a smaller model, or end other programs"),
    ],
)
def test_the_next_smaller_choices_are_named_and_fit(
    model: Path, leave: Leave, left: int, cache: dict[str, int], remedy: str
) -> None:
    leave(left)
    assert plan_of(model, **cache).remedy == remedy
    chosen = dict(word.split("=") for word in remedy.split() if "=" in word)
    alone = [{name: int(value)} for name, value in chosen.items()]
    for choice in alone if " or " in remedy else [{k: int(v) for k, v in chosen.items()}] if chosen else []:
        assert plan_of(model, **cache | choice).fits


def test_an_error_has_the_numbers_the_plan_and_the_way_out(model: Path, leave: Leave) -> None:
    leave(3_000_000)
    plan = plan_of(model, context_tokens=4000, slots=2)
    with pytest.raises(onhand.MemoryPlanError) as caught:
        check(plan, "tiny")
    assert caught.value.plan == plan
    assert isinstance(caught.value, MemoryError)
    for part in ("tiny takes 9 MB", "2 windows of 4000", "weights 1 MB", "KV cache 8 MB", "the machine leaves 4 MB"):
        assert part in str(caught.value)
    assert plan.remedy in str(caught.value)
    assert 'oversize="load"' in str(caught.value)


def test_a_window_longer_than_the_model_was_trained_for_is_refused_as_such(model: Path, leave: Leave) -> None:
    leave(0)
    with pytest.raises(onhand.OptionError, match=f"at most {CONTEXT}"):
        plan_of(model, context_tokens=CONTEXT + 1)


def test_a_model_that_does_not_fit_is_neither_compiled_nor_loaded(
    model: Path, leave: Leave, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(3_000_000)
    backend = Planning()
    monkeypatch.setattr(onhand.model, "choose_backend", lambda device: backend)
    with pytest.raises(onhand.MemoryPlanError):
        onhand.open(model)
    assert backend.done == []


def test_oversize_loads_it_all_the_same(model: Path, leave: Leave, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(0)
    backend = Planning()
    monkeypatch.setattr(onhand.model, "choose_backend", lambda device: backend)
    with onhand.open(model, device=DeviceOptions(oversize="load")) as opened:
        assert opened.plan is not None
        assert not opened.plan.fits
    assert backend.done == ["prepare", "load"]


def test_a_backend_that_makes_no_plan_loads_everything(
    model: Path, leave: Leave, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(0)
    assert planned(model, Plain(), {}) is None
    monkeypatch.setattr(onhand.model, "choose_backend", lambda device: Plain())
    with onhand.open(model) as opened:
        assert opened.plan is None


def test_a_draft_is_part_of_the_plan(model: Path, home: Path) -> None:
    with onhand.open(model) as alone, onhand.open(model, draft="tiny") as both:
        assert alone.plan is not None
        assert both.plan is not None
        assert both.plan.overhead_bytes == alone.plan.overhead_bytes + alone.plan.total_bytes


def test_oversize_takes_two_words() -> None:
    with pytest.raises(onhand.OptionError, match="refuse or load"):
        DeviceOptions(oversize="perhaps")  # type: ignore[arg-type]


LIMITED = """
    import json, resource, sys
    from pathlib import Path
    import onhand, onhand.model, onhand_cpu

    def taken():
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    limit = taken() + 600_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        onhand.open(Path(sys.argv[1]), cache=onhand.CacheOptions(context_tokens=1 << 20))
    except onhand.MemoryPlanError as error:
        plan, grown = error.plan, taken() - limit + 600_000_000
    advised = int(plan.remedy.split("context_tokens=")[1].split()[0])
    fitting = onhand.CacheOptions(context_tokens=advised // 2)
    with onhand.open(Path(sys.argv[1]), cache=fitting) as model:
        options = onhand.GenerationOptions(max_tokens=4)
        print(json.dumps({"advised": advised, "grown": grown, "said": model.chat().ask("Hello", options).text}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to a limit of the address space")
def test_under_a_real_limit_a_refusal_takes_nothing_and_its_advice_can_be_taken(model: Path, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(model)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["grown"] < 50_000_000
    assert 256 <= found["advised"] < CONTEXT
