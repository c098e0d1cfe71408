"""The real models compute what plain numpy computes on their dequantized weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from onhand.backends import Chunk
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import MODELS, divergence, prose_ids, real_package, reference_logits

pytestmark = pytest.mark.real_model


def logits(name: str, graph: str, chunk: int) -> npt.NDArray[np.float32]:
    package, ids = real_package(name), prose_ids(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    runtime = CpuRuntime(spec, artifact_folder(package) / graph, threads=2, context_tokens=256)
    cuts = range(0, len(ids), chunk)
    rows = [runtime.forward([Chunk(slot=0, tokens=ids[c : c + chunk], rows="all")]).copy() for c in cuts]
    runtime.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("name", MODELS)
def test_float_products_differ_by_less_than_a_thousandth_of_the_logits_range(name: str) -> None:
    expected, found = reference_logits(name), logits(name, "exact.onnx", 200)
    assert np.abs(found - expected).max() <= 1e-3 * (expected.max() - expected.min())
    assert (found.argmax(axis=-1) == expected.argmax(axis=-1)).all()


@pytest.mark.parametrize("chunk", [200, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
def test_int8_products_stay_within_a_hundredth_of_a_nat(name: str, chunk: int) -> None:
    expected, found = reference_logits(name), logits(name, "decoder.onnx", chunk)
    assert divergence(expected, found).mean() <= 0.01
    assert (found.argmax(axis=-1) == expected.argmax(axis=-1)).mean() >= 0.93
