"""The real models with an 8-bit KV cache say what they say with a float32 one, and the same however a prompt is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from onhand.backends import Chunk, LayerKv
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.options import CacheOptions, DeviceOptions
from onhand_cpu import CpuRuntime, backend
from onhand_cpu.artifact import artifact_folder
from onhand_cpu.calibration import kv_scales
from onhand_cpu.kv_scales import LARGEST
from support.real import MODELS, prose_ids, real_package

pytestmark = pytest.mark.real_model

TOKENS = 1500
CUT_TOKENS = 320
"""More than the 256 keys that attention takes in one block with heads of 256, on 2 MiB of L2."""

Rows = npt.NDArray[np.float32]


@contextmanager
def opened(name: str, bits: int, *, tokens: int, threads: int = 2) -> Iterator[CpuRuntime]:
    """Of any number of threads, more than there are CPUs too."""
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    scales = None if bits == 32 else kv_scales(package, spec, threads=2)
    model = artifact_folder(package) / ("decoder.onnx" if scales is None else "decoder-kv8.onnx")
    runtime = CpuRuntime(spec, model, threads=threads, context_tokens=tokens, scales=scales)
    yield runtime
    runtime.close()


def read(runtime: CpuRuntime, ids: Sequence[int], sizes: Sequence[int]) -> Rows:
    """Logits of all ids, read in chunks of these sizes and then one by one."""
    runtime.truncate(0, 0)
    cuts = [0, *np.cumsum(sizes).tolist()]
    cuts += range(cuts[-1] + 1, len(ids) + 1)
    chunks = [ids[start:stop] for start, stop in pairwise(cuts)]
    return np.concatenate([runtime.forward([Chunk(slot=0, tokens=chunk, rows="all")]).copy() for chunk in chunks])


def perplexity(runtime: CpuRuntime, ids: Sequence[int]) -> float:
    """Of every id after the first, in chunks: all logits at once would take gigabytes."""
    surprise, start = 0.0, 0
    while start < len(ids) - 1:
        chunk, following = ids[start : start + 100], ids[start + 1 : start + 101]
        logits = runtime.forward([Chunk(slot=0, tokens=chunk, rows="all")])[: len(following)].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = logits[np.arange(len(following)), following]
        surprise += float((np.log(np.exp(logits).sum(axis=-1)) - chosen).sum())
        start += len(chunk)
    return float(np.exp(surprise / (len(ids) - 1)))


def clipped(name: str, layers: Sequence[LayerKv]) -> float:
    """The share of such keys and values, as they are in float32, that the model's scales do not reach."""
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        scales = kv_scales(package, read_spec(file), threads=2)
    beyond, total = 0, 0
    for i, (keys, values) in enumerate(layers):
        for numbers, steps in ((keys, scales.keys[i]), (values, scales.values[i])):
            beyond += int((np.abs(numbers) > (LARGEST + 0.5) * steps[:, None]).sum())
            total += numbers.size
    return beyond / total


def test_perplexity_of_prose_is_within_half_a_percent_and_next_to_nothing_is_clipped() -> None:
    ids = prose_ids("smollm2", TOKENS)
    with opened("smollm2", 32, tokens=TOKENS) as runtime:
        expected = perplexity(runtime, ids)
        assert clipped("smollm2", list(runtime.export(0))) < 5e-4
    with opened("smollm2", 8, tokens=TOKENS) as runtime:
        assert perplexity(runtime, ids) == pytest.approx(expected, rel=5e-3)


def test_next_to_nothing_of_prose_is_clipped_with_wide_heads() -> None:
    with opened("gemma3", 32, tokens=CUT_TOKENS) as runtime:
        runtime.forward([Chunk(slot=0, tokens=prose_ids("gemma3", CUT_TOKENS), rows="none")])
        assert clipped("gemma3", list(runtime.export(0))) < 5e-4


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_same_bits_however_a_prompt_is_cut(name: str) -> None:
    ids = prose_ids(name, CUT_TOKENS)
    with opened(name, 8, tokens=CUT_TOKENS) as runtime:
        expected = read(runtime, ids, [CUT_TOKENS])
        for sizes in ([1, 2, 60, 3, 230], [16] * 18, [7, 250, 31]):
            assert np.array_equal(read(runtime, ids, sizes), expected)


def test_logits_are_the_same_bits_with_more_threads_than_heads() -> None:
    """There attention would share out the keys of a single query among the threads, and add up in another order."""
    ids = prose_ids("gemma3", CUT_TOKENS)
    with opened("gemma3", 8, tokens=CUT_TOKENS) as runtime:
        expected = read(runtime, ids, [CUT_TOKENS])[-20:]
    with opened("gemma3", 8, tokens=CUT_TOKENS, threads=8) as runtime:
        assert np.array_equal(read(runtime, ids, [CUT_TOKENS - 20])[-20:], expected)


def test_a_loaded_package_is_what_was_asked_for() -> None:
    package = real_package("smollm2")
    options = [CacheOptions(context_tokens=2048, kv_bits=8), CacheOptions(context_tokens=2048)]
    small, large = (backend.load(package, cache, DeviceOptions(threads=2)) for cache in options)
    assert small.cache.bytes_per_token <= 0.27 * large.cache.bytes_per_token
    small.close()
    large.close()
