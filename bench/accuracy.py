"""How far each engine's logits are from plain numpy's on the same file's dequantized weights, over 200 tokens of prose.

python bench/accuracy.py            llama.cpp's rows are there where llama-cpp-python is installed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from common import machine

from support.real import MODELS, divergence, logits, prose_ids, real_package, reference_logits

Rows = npt.NDArray[np.float32]


def llama_cpp_logits(name: str, chunk: int) -> Rows:
    from llama_cpp import Llama

    ids = prose_ids(name)
    model = Llama(
        str(real_package(name).weights), n_ctx=256, n_threads=2, n_batch=chunk, logits_all=True, verbose=False
    )
    model.eval(ids)
    return np.array(model.scores[: len(ids)], np.float32)


def engines(name: str) -> Iterator[tuple[str, Rows]]:
    count = len(prose_ids(name))
    yield "onhand, float32 products", logits(name, "exact.onnx", count)
    yield "onhand, prefill", logits(name, "decoder.onnx", count)
    yield "onhand, decode", logits(name, "decoder.onnx", 1)
    try:
        yield "llama.cpp, prefill", llama_cpp_logits(name, count)
        yield "llama.cpp, decode", llama_cpp_logits(name, 1)
    except ImportError:
        print("llama-cpp-python is not installed: its rows are left out", file=sys.stderr)


def main() -> None:
    print(machine())
    print(
        "| model | engine | mean KL, nats | max KL | max difference / range | same argmax |\n|---|---|---|---|---|---|"
    )
    for name in MODELS:
        expected = reference_logits(name)
        span = float(expected.max() - expected.min())
        for engine, found in engines(name):
            kl = divergence(expected, found)
            worst = float(np.abs(found - expected).max()) / span
            same = float((found.argmax(axis=-1) == expected.argmax(axis=-1)).mean())
            print(f"| {name} | {engine} | {kl.mean():.6f} | {kl.max():.4f} | {worst:.1e} | {same:.1%} |", flush=True)


if __name__ == "__main__":
    main()
