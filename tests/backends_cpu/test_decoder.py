"""The graph computes what plain numpy computes, for every architecture and every block type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from onhand.backends import Chunk
from onhand.errors import UnsupportedArchitectureError
from onhand.formats.blocks import BlockType
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand.formats.spec import inverse_frequencies
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder, compile_package
from support.packages import tiny_package
from support.reference import ReferenceDecoder
from support.tiny import ARCHITECTURES, HEAD_SIZE, VOCAB, WINDOW

RNG = np.random.default_rng(7)
PROMPT = RNG.integers(0, VOCAB, 6 * WINDOW).tolist()


def logits(package: ModelPackage, graph: str) -> npt.NDArray[np.float32]:
    compile_package(package)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    runtime = CpuRuntime(spec, artifact_folder(package) / graph, threads=2, context_tokens=64)
    first = runtime.forward([Chunk(slot=0, tokens=PROMPT[:-3], rows="all")]).copy()
    rest = [runtime.forward([Chunk(slot=0, tokens=[token])]).copy() for token in PROMPT[-3:]]
    runtime.close()
    return np.concatenate([first, *rest])


def reference(package: ModelPackage) -> npt.NDArray[np.float32]:
    with GgufFile.open(package.weights) as file:
        return ReferenceDecoder(file, read_spec(file)).logits(PROMPT)


def error(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """The largest difference as a share of the logits' range."""
    return float(np.abs(found - expected).max() / (expected.max() - expected.min()))


def int8_error(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """The root mean square of the differences as a share of the logits' standard deviation."""
    return float(np.sqrt(np.square(found - expected).mean()) / expected.std())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_agrees_with_numpy(architecture: str, tied: bool, tmp_path: Path) -> None:
    package = tiny_package(tmp_path, architecture, block_type=BlockType.Q8_0, tied=tied)
    expected = reference(package)
    assert error(logits(package, "exact.onnx"), expected) < 1e-4
    assert int8_error(logits(package, "decoder.onnx"), expected) < 0.06


@pytest.mark.parametrize("block_type", list(BlockType), ids=lambda t: t.name)
def test_every_block_type_agrees_with_numpy(block_type: BlockType, tmp_path: Path) -> None:
    package = tiny_package(tmp_path, "llama", block_type=block_type)
    expected = reference(package)
    # Random bytes give K-quants offsets far outside of the codes' range, which real models do not have.
    wild = block_type in (BlockType.Q2_K, BlockType.Q4_K, BlockType.Q5_K)
    assert error(logits(package, "exact.onnx"), expected) < (5e-3 if wild else 1e-3)
    assert int8_error(logits(package, "decoder.onnx"), expected) < 0.06


@pytest.mark.parametrize("context", [32, 33, 64])
def test_longrope_chooses_its_factors_by_the_context_that_was_asked_for(context: int, tmp_path: Path) -> None:
    factors = np.linspace(1, 4, HEAD_SIZE // 2, dtype=np.float32)
    tensors = {
        f"rope_factors_{kind}.weight": (BlockType.F32, values, values.shape)
        for kind, values in (("short", factors), ("long", factors * 5))
    }
    extra = {"phi3.rope.scaling.original_context_length": 32, "phi3.rope.scaling.attn_factor": 1.2}
    how = {"block_type": BlockType.Q8_0, "extra": extra, "extra_tensors": tensors}
    package = tiny_package(tmp_path, "phi3", **how)
    compile_package(package)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
        expected = ReferenceDecoder(file, spec, context).logits(PROMPT[:30])
        other = ReferenceDecoder(file, spec, 97 - context).logits(PROMPT[:30])
    runtime = CpuRuntime(spec, artifact_folder(package) / "exact.onnx", threads=1, context_tokens=context)
    found = runtime.forward([Chunk(slot=0, tokens=PROMPT[:30], rows="all")])
    assert error(found, expected) < 1e-4
    assert error(other, expected) > 0.01 or (context > 32) == (97 - context > 32)


@pytest.mark.parametrize(
    ("scaling", "divisor"),
    [({"llama.rope.scaling.factor": 4.0}, 4), ({"llama.rope.scale_linear": 4.0}, 4), ({}, 1)],
    ids=["no type", "older key", "none"],
)
def test_a_rope_factor_without_a_type_is_linear(scaling: dict[str, float], divisor: int, tmp_path: Path) -> None:
    package = tiny_package(tmp_path, "llama", extra=scaling)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    plain, _ = inverse_frequencies(replace(spec.ropes[0], scaling=None), 64)
    np.testing.assert_allclose(inverse_frequencies(spec.ropes[0], 64)[0], plain / divisor)


def test_shapes_that_the_operators_refuse_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    extra = {"llama.rope.dimension_count": 8}
    package = tiny_package(tmp_path, "llama", extra=extra)
    with pytest.raises(UnsupportedArchitectureError, match="multiples of 16"):
        compile_package(package)
    assert sorted(path.name for path in package.folder.iterdir()) == ["model.json", "weights.gguf"]


def test_another_head_changes_the_logits(tmp_path: Path) -> None:
    """A file that holds an output matrix besides the embeddings gets that one (BR-18)."""
    tied = tiny_package(tmp_path / "tied", "llama", tied=True)
    untied = tiny_package(tmp_path / "untied", "llama", tied=False)
    assert np.abs(logits(tied, "exact.onnx") - logits(untied, "exact.onnx")).max() > 0.1


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3", "phi3"])
def test_a_local_window_hides_what_lies_before_it(architecture: str, tmp_path: Path) -> None:
    """The control of the window: with one that covers everything the logits differ."""
    windowed = reference(tiny_package(tmp_path / "windowed", architecture))
    wide = {f"{architecture}.attention.sliding_window": 1000}
    full = reference(tiny_package(tmp_path / "full", architecture, extra=wide))
    assert np.abs(windowed[:WINDOW] - full[:WINDOW]).max() < 1e-6
    assert np.abs(windowed - full).max() > 1e-3
