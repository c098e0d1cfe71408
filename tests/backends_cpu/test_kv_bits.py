"""An 8-bit KV cache keeps what a float32 one keeps, but for its rounding, which does not add up."""

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
from onhand.formats.spec import rope_tables
from onhand.options import CacheOptions, DeviceOptions
from onhand_cpu import CpuRuntime, backend
from onhand_cpu.artifact import KV_SCALES, artifact_folder, compile_package, is_current
from onhand_cpu.calibration import kv_scales
from onhand_cpu.kv_scales import KEY_HEADROOM, LARGEST, dequantize, quantize, scales_for
from support.packages import tiny_package
from support.reference import ReferenceDecoder
from support.tiny import ARCHITECTURES, VOCAB

CONTEXT = 48
RNG = np.random.default_rng(11)
TOKENS = RNG.integers(0, VOCAB, 400).tolist()

Rows = npt.NDArray[np.float32]


def open_exact(package: ModelPackage) -> CpuRuntime:
    """With float32 products, so that the KV cache alone rounds."""
    compile_package(package)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    scales = kv_scales(package, spec, threads=2)
    model = artifact_folder(package) / "exact-kv8.onnx"
    return CpuRuntime(spec, model, threads=2, context_tokens=CONTEXT, scales=scales)


def reference_of(package: ModelPackage) -> ReferenceDecoder:
    file = GgufFile.open(package.weights)
    return ReferenceDecoder(file, read_spec(file), CONTEXT)


def append(runtime: CpuRuntime, tokens: list[int]) -> Rows:
    return runtime.forward([Chunk(slot=0, tokens=tokens, rows="all")]).copy()


def error(found: Rows, expected: Rows) -> float:
    """The root mean square of the differences as a share of the logits' standard deviation."""
    return float(np.sqrt(np.square(found - expected).mean()) / expected.std())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_agrees_with_numpy_within_the_rounding(architecture: str, tmp_path: Path) -> None:
    package = tiny_package(tmp_path, architecture, block_type=BlockType.Q8_0)
    expected = reference_of(package).logits(TOKENS[:CONTEXT])
    exact = open_exact(package)
    assert 1e-4 < error(append(exact, TOKENS[:CONTEXT]), expected) < 0.08  # as much as int8 products
    exact.close()
    shipped = backend.load(package, CacheOptions(context_tokens=CONTEXT, kv_bits=8), DeviceOptions(threads=2))
    assert error(append(shipped, TOKENS[:CONTEXT]), expected) < 0.11  # both roundings
    shipped.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fifty_evictions_do_not_drift(architecture: str, tmp_path: Path) -> None:
    """A key is rounded again each time that it moves, six times until it is evicted itself, and no more often."""
    package = tiny_package(tmp_path, architecture, block_type=BlockType.Q8_0)
    runtime, reference = open_exact(package), reference_of(package)
    append(runtime, TOKENS[:CONTEXT])
    reference.append(TOKENS[:CONTEXT])
    errors = []
    for start in range(CONTEXT, CONTEXT + 50 * 7, 7):
        runtime.evict(0, 4, 7)
        reference.evict(4, 7)
        tokens = TOKENS[start : start + 7]
        errors.append(error(append(runtime, tokens), reference.append(tokens)))
    assert max(errors) < 0.25
    assert np.mean(errors[-20:]) < 1.5 * np.mean(errors[5:25])
    runtime.close()


def test_a_token_takes_little_more_than_a_quarter_of_the_memory(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    backend.prepare(package)
    sizes = {}
    for bits in (8, 32):
        runtime = backend.load(package, CacheOptions(context_tokens=100, kv_bits=bits), DeviceOptions(threads=1))
        sizes[bits] = runtime.cache.bytes_per_token
        assert sum(view.nbytes for _, view in runtime._kv.buffers(0, 1)) // runtime._kv.capacity <= sizes[bits]
        runtime.close()
    assert 0.25 < sizes[8] / sizes[32] <= 0.27


@pytest.mark.parametrize("bits", [4, 16, 8.0, True, "8", None])
def test_other_numbers_of_bits_are_refused(bits: object) -> None:
    with pytest.raises(OptionError, match="8 or 32"):
        CacheOptions(kv_bits=bits)  # type: ignore[arg-type]


def test_scales_are_measured_once_and_belong_to_the_compiled_form(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    compile_package(package)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    path = artifact_folder(package) / KV_SCALES
    first = kv_scales(package, spec, threads=2)
    assert is_current(package, spec)
    stamp = path.stat().st_mtime_ns
    again = kv_scales(package, spec, threads=2)
    assert path.stat().st_mtime_ns == stamp
    assert np.array_equal(first.keys, again.keys)
    assert np.array_equal(first.values, again.values)


@pytest.mark.parametrize("damage", ["cut short", "empty", "not a number", "another shape", "a folder"])
def test_scales_that_were_damaged_are_measured_again(damage: str, tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    compile_package(package)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    expected = kv_scales(package, spec, threads=2)
    path = artifact_folder(package) / KV_SCALES
    whole = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(whole[:-10])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "not a number":
        path.write_bytes(whole[:-4] + b"\xff\xff\xff\x7f")
    elif damage == "another shape":
        np.save(path, np.ones((2, 1, 1, 16), np.float32))
    else:
        path.unlink()
        path.mkdir()
    found = kv_scales(package, spec, threads=2)
    assert np.array_equal(found.keys, expected.keys)
    assert path.is_dir() or path.read_bytes() == whole  # what cannot be kept is used all the same


@pytest.mark.parametrize("architecture", ["llama", "phi3"])  # interleaved and not
def test_no_place_brings_a_key_beyond_its_scale(architecture: str, tmp_path: Path) -> None:
    with GgufFile.open(tiny_package(tmp_path, architecture).weights) as file:
        spec = read_spec(file)
    shape = (spec.kv_heads, 5, spec.head_size)
    keys = [RNG.standard_normal(shape).astype(np.float32) for _ in spec.layers]
    keys[0][:, :, 0] = 0  # what is still nothing at the place where it was measured
    scales = scales_for(spec, keys, keys)
    for layer, found, rope in zip(keys, scales.keys, [layer.rope for layer in spec.layers], strict=True):
        cos, sin = rope_tables(rope, 500, 500)
        pairs = [slice(0, None, 2), slice(1, None, 2)] if rope.interleaved else [slice(0, 8), slice(8, 16)]
        a, b = (layer[:, None, :, pair] for pair in pairs)  # (kv_heads, 1, tokens, pairs)
        cos, sin = cos[:, None], sin[:, None]  # (places, 1, pairs)
        for pair, rotated in zip(pairs, (a * cos - b * sin, a * sin + b * cos), strict=True):
            steps = np.abs(rotated).max(axis=(1, 2)) / found[:, pair]
            assert (steps <= LARGEST / KEY_HEADROOM * 1.0001).all()


def test_rounding_is_by_half_a_step_and_clips_at_the_ends() -> None:
    scales = np.array([[0.5, 0.01]], np.float32)
    x = np.array([[[0.24, 0.0], [0.26, -0.01], [0.75, 0.5], [100, -100]]], np.float32)
    stored = quantize(x, scales)
    assert stored.tolist() == [[[0, 0], [1, -1], [2, 50], [127, -128]]]
    assert np.array_equal(quantize(dequantize(stored, scales), scales), stored)


def test_a_head_that_was_always_silent_has_a_scale(tmp_path: Path) -> None:
    with GgufFile.open(tiny_package(tmp_path).weights) as file:
        spec = read_spec(file)
    silent = [np.zeros((spec.kv_heads, 5, spec.head_size), np.float32) for _ in spec.layers]
    scales = scales_for(spec, silent, silent)
    assert (scales.keys > 0).all()
    assert (scales.values > 0).all()
