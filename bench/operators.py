"""Where a step spends its time, by operator and by matrix; and what the loop around the graph adds.

python bench/operators.py [--model llama-3b] [--context 512] [--tokens 1] [--steps 24]

The graph runs under ONNX Runtime's profiler, bound once as `CpuRuntime` binds it; the times of the operators are means
a step. The loop is measured without the profiler: the graph alone, and the product's own loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import get_args
from unittest import mock

import numpy as np
import onnxruntime as ort
from common import interleaved, machine, timed
from shapes import SHAPES, Embedding, Matrices, shape_package

from onhand.backends import Chunk
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from onhand_cpu.denormals import no_denormals
from support.real import MODELS, real_package


class Profiled(CpuRuntime):
    """A runtime whose session is profiled."""

    def profile(self) -> Path:
        assert self._session is not None
        return Path(self._session.end_profiling())


def runtime(package: ModelPackage, context: int, threads: int, prefix: Path | None) -> Profiled:
    """A runtime, profiled where there is a prefix for the profile's file."""
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    options = ort.SessionOptions()
    if prefix is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    with mock.patch.object(ort, "SessionOptions", return_value=options):
        graph = artifact_folder(package) / "decoder.onnx"
        return Profiled(spec, graph, threads=threads, context_tokens=context)


def step(engine: CpuRuntime, context: int, tokens: int) -> None:
    engine.truncate(0, context)
    engine.forward([Chunk(slot=0, tokens=[7] * tokens)])


def by_operator(package: ModelPackage, context: int, tokens: int, steps: int, threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = runtime(package, context + tokens, threads, Path(folder) / "profile")
        prompt = [int(token) for token in np.random.default_rng(0).integers(0, 200, context)]
        if context:
            engine.forward([Chunk(slot=0, tokens=prompt, rows="none")])
        for _ in range(steps):
            step(engine, context, tokens)
        events = json.loads(engine.profile().read_text())
        engine.close()
    runs = [event for event in events if event["name"] == "model_run"][-steps:]
    first = runs[0]["ts"]
    operators: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["ts"] >= first and event["name"].endswith("_kernel_time"):
            name = event["args"]["op_name"]
            if name == "MatMulNBits":
                shapes = [next(iter(shape.values())) for shape in event["args"]["input_type_shape"]]
                name += f" {shapes[1][0]} x {shapes[0][-1]}, {shapes[0][-2] * shapes[0][0]} rows"
            operators[name] += event["dur"]
            counts[name] += 1
    total = sum(event["dur"] for event in runs)
    print("| operator | ms a step | share | runs a step |\n|---|---|---|---|")
    for name, microseconds in operators.most_common(16):
        share = f"{microseconds / total:.1%}"
        print(f"| {name} | {microseconds / steps / 1e3:.3f} | {share} | {counts[name] / steps:.0f} |")
    between = total - operators.total()
    print(f"| between operators | {between / steps / 1e3:.3f} | {between / total:.1%} | |")
    print(f"| a run | {total / steps / 1e3:.3f} | | |")


def loop(package: ModelPackage, context: int, tokens: int, steps: int, threads: int) -> None:
    engine = runtime(package, context + tokens, threads, None)
    if context:
        engine.forward([Chunk(slot=0, tokens=[7] * context, rows="none")])
    session = engine._session
    assert session is not None
    step(engine, context, tokens)
    runs = {"forward": lambda: timed(lambda: step(engine, context, tokens))}
    if bindings := [binding for key, binding in engine._bindings.items() if key[2] == tokens]:

        def graph() -> None:
            with no_denormals():  # as the runtime runs it
                session.run_with_iobinding(bindings[0].io)

        runs["graph alone"] = lambda: timed(graph)
    for name, seconds in interleaved(runs, steps).items():
        print(f"{name}: {statistics.median(seconds) * 1e3:.3f} ms")
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*MODELS, *SHAPES), default="llama-3b")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1, help="new tokens of a step")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--matrices", choices=get_args(Matrices), default="q4_0", help="of the random models")
    parser.add_argument("--embedding", choices=get_args(Embedding), default="q6_k", help="of the random models")
    arguments = parser.parse_args()
    name = arguments.model
    package = real_package(name) if name in MODELS else shape_package(name, arguments.matrices, arguments.embedding)
    print(
        f"{machine()}; {package.name}, {arguments.threads} threads, {arguments.tokens} behind {arguments.context}\n",
        flush=True,
    )
    what = arguments.context, arguments.tokens, arguments.steps, arguments.threads
    by_operator(package, *what)
    print()
    loop(package, *what)
    print(machine())


if __name__ == "__main__":
    main()
