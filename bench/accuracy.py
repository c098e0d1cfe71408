"""How far each engine's logits are from plain numpy's on the same file's dequantized weights, over 200 tokens of prose.

python bench/accuracy.py            llama.cpp's rows are there where llama-cpp-python is installed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from common import machine

from onhand.backends import Chunk
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import MODELS, divergence, prose_ids, real_package, reference_logits

Rows = npt.NDArray[np.float32]


def onhand_logits(name: str, graph: str, chunk: int) -> Rows:
    package, ids = real_package(name), prose_ids(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    runtime = CpuRuntime(spec, artifact_folder(package) / graph, threads=2, context_tokens=256)
    cuts = range(0, len(ids), chunk)
    rows = [runtime.forward([Chunk(slot=0, tokens=ids[c : c + chunk], rows="all")]).copy() for c in cuts]
    runtime.close()
    return np.concatenate(rows)


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
    yield "onhand, float32 products", onhand_logits(name, "exact.onnx", count)
    yield "onhand, prefill", onhand_logits(name, "decoder.onnx", count)
    yield "onhand, decode", onhand_logits(name, "decoder.onnx", 1)
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
