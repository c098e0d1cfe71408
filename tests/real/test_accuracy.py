"""The real models compute what plain numpy computes on their dequantized weights."""

from __future__ import annotations

import numpy as np
import pytest

from support.real import MODELS, divergence, logits, reference_logits

pytestmark = pytest.mark.real_model


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
