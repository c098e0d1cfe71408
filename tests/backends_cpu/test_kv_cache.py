"""Eviction, copies and slots do what plain numpy does that keeps keys unrotated; other slots never notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from onhand.backends import Chunk
from onhand.errors import OptionError
from onhand.formats.blocks import BlockType
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder, compile_package
from onhand_cpu.calibration import kv_scales
from support.packages import tiny_package
from support.reference import ReferenceDecoder
from support.tiny import ARCHITECTURES, VOCAB

CONTEXT = 48
RNG = np.random.default_rng(11)
TOKENS = RNG.integers(0, VOCAB, 400).tolist()

Logits = npt.NDArray[np.float32]


def runtime_of(package: ModelPackage, *, graph: str = "exact.onnx", slots: int = 1) -> CpuRuntime:
    compile_package(package)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    model = artifact_folder(package) / graph
    scales = kv_scales(package, spec, threads=2) if "kv8" in graph else None
    return CpuRuntime(spec, model, threads=2, context_tokens=CONTEXT, slots=slots, scales=scales)


def reference_of(package: ModelPackage) -> ReferenceDecoder:
    file = GgufFile.open(package.weights)
    return ReferenceDecoder(file, read_spec(file), CONTEXT)


def append(runtime: CpuRuntime, tokens: list[int], slot: int = 0) -> Logits:
    return runtime.forward([Chunk(slot=slot, tokens=tokens, rows="all")]).copy()


def error(found: Logits, expected: Logits) -> float:
    return float(np.abs(found - expected).max() / (expected.max() - expected.min()))


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sliding_for_ever_equals_keys_rotated_when_they_are_attended_to(
    architecture: str, sinks: int, tmp_path: Path
) -> None:
    package = tiny_package(tmp_path, architecture, block_type=BlockType.Q8_0)
    runtime, reference = runtime_of(package), reference_of(package)
    done, slides = 0, 0
    for size in (CONTEXT, *(1, 3, 7, 16, 2, 5, 1, 12, 9) * 5):
        room = CONTEXT - runtime.length(0)
        if size > room:
            count = max(size - room, 11)
            runtime.evict(0, sinks, count)
            reference.evict(sinks, count)
            slides += 1
        tokens = TOKENS[done : done + size]
        done += len(tokens)
        if tokens:
            assert error(append(runtime, tokens), reference.append(tokens)) < 2e-4
    assert slides > 15
    runtime.close()


def test_evicting_the_last_tokens_is_truncating(tmp_path: Path) -> None:
    runtime = runtime_of(tiny_package(tmp_path))
    append(runtime, TOKENS[:20])
    runtime.truncate(0, 12)
    expected = append(runtime, TOKENS[30:40])
    runtime.truncate(0, 0)
    append(runtime, TOKENS[:20])
    runtime.evict(0, 12, 8)
    assert runtime.length(0) == 12
    assert np.array_equal(append(runtime, TOKENS[30:40]), expected)
    runtime.close()


@pytest.mark.parametrize("graph", ["decoder.onnx", "decoder-kv8.onnx"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_slots_that_run_together_get_what_each_gets_alone(architecture: str, graph: str, tmp_path: Path) -> None:
    runtime = runtime_of(tiny_package(tmp_path, architecture), graph=graph, slots=4)
    scripts = [TOKENS[first : first + 40] for first in (0, 50, 100, 150)]
    alone = []
    for script in scripts:
        runtime.truncate(3, 0)
        alone.append(append(runtime, script, slot=3))
    runtime.truncate(3, 0)
    found: list[list[Logits]] = [[] for _ in scripts]
    while any(runtime.length(slot) < len(script) for slot, script in enumerate(scripts)):
        batch = []
        for slot in RNG.permutation(4).tolist():
            length, size = runtime.length(slot), int(RNG.choice([0, 1, 1, 2, 5, 17]))
            if tokens := scripts[slot][length : length + size]:
                batch.append(Chunk(slot=slot, tokens=tokens, rows="all"))
        if batch:
            logits, start = runtime.forward(batch), 0
            for chunk in batch:
                found[chunk.slot].append(logits[start : start + len(chunk.tokens)].copy())
                start += len(chunk.tokens)
    for slot, expected in enumerate(alone):
        assert np.array_equal(np.concatenate(found[slot]), expected), slot
    runtime.close()


@pytest.mark.parametrize("graph", ["decoder.onnx", "decoder-kv8.onnx"])
def test_what_one_slot_evicts_and_copies_leaves_the_others_alone(graph: str, tmp_path: Path) -> None:
    runtime = runtime_of(tiny_package(tmp_path, "gemma3"), graph=graph, slots=3)
    expected = append(runtime, TOKENS[:30], slot=1)
    runtime.truncate(1, 20)
    append(runtime, TOKENS[100:140], slot=0)
    runtime.evict(0, 4, 20)
    append(runtime, TOKENS[140:150], slot=0)
    assert np.array_equal(append(runtime, TOKENS[20:30], slot=1), expected[20:])
    runtime.copy(1, 2, 20)
    append(runtime, TOKENS[200:210], slot=1)
    assert np.array_equal(append(runtime, TOKENS[20:30], slot=2), expected[20:])
    runtime.close()


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, 0), (5, 6), (11, 1), (0, -1)])
def test_places_that_hold_nothing_cannot_be_evicted(first: int, count: int, tmp_path: Path) -> None:
    runtime = runtime_of(tiny_package(tmp_path))
    append(runtime, TOKENS[:10])
    with pytest.raises(OptionError):
        runtime.evict(0, first, count)
    assert runtime.length(0) == 10
    runtime.close()
