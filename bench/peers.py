"""onhand and its peers on the same weights, interleaved in one run: decode, prefill, resident memory, loading.

python bench/peers.py [--model smollm2] [--rounds 9] [--context 512] [--engines onhand,llama.cpp]

Each engine runs in a process of its own (bench/adapters.py), with this interpreter or with that of
$ONHAND_BENCH_PYTHON, which may have what does not go together with onhand; an engine that neither has is left out.
Between two runs there is a pause, so that no engine's idle threads take another's time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psutil
from adapters import ADAPTERS
from common import Run, machine, median_ratio, memory_reader
from genai_model import genai_folder, set_threads
from shapes import SHAPES, Embedding, Matrices, shape_package

from onhand.formats.blocks import BlockType
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import MODELS, prose_ids, real_package

PROMPT, THREADS, PAUSE_SECONDS = 512, 2, 0.3
MODULES = {"llama.cpp": "llama_cpp", "openvino": "openvino_genai", "ort-genai": "onnxruntime_genai"}
ADAPTERS_FILE = Path(__file__).with_name("adapters.py")


def onhand_runtime(name: str, context: int = 1024) -> CpuRuntime:
    """The runtime of a real model, for a benchmark in this process."""
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    return CpuRuntime(spec, artifact_folder(package) / "decoder.onnx", threads=THREADS, context_tokens=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and what is asked of it: so many steps behind a prompt of `context` tokens."""

    package: ModelPackage
    context: int
    steps: int

    @property
    def room(self) -> int:
        return max(self.context, PROMPT) + self.steps + 64

    def prompt(self, name: str, tokens: int) -> list[int]:
        if name in MODELS:
            return prose_ids(name, tokens)
        return [int(token) for token in np.random.default_rng(tokens).integers(0, 256, tokens)]

    def read_bytes(self, engine: str) -> float:
        """Bytes that a decode step reads: every weight once, the KV cache of the context once.

        The embeddings of all these models are tied, so the last product reads them all. As stored: onhand and GenAI
        carry scales as float32, llama.cpp and OpenVINO as float16; OpenVINO has zero points and 8-bit numbers for Q6_K.
        KV: float32 with onhand and GenAI, float16 with llama.cpp, 8 bits with OpenVINO.
        """
        with GgufFile.open(self.package.weights) as file:
            spec = read_spec(file)
            sizes = [(tensor.type, tensor.nbytes) for tensor in file.tensors.values()]
        numbers = spec.kv_values_per_token * self.context
        if engine in ("onhand", "ort-genai"):
            return (artifact_folder(self.package) / "decoder.bin").stat().st_size + 4 * numbers
        if engine == "llama.cpp":
            return sum(size for _, size in sizes) + 2 * numbers
        return sum(size / kind.bytes * _openvino_bytes(kind) for kind, size in sizes) + numbers


def _openvino_bytes(kind: BlockType) -> float:
    """Bytes of a block in the IR that OpenVINO GenAI makes of a GGUF file; as many are in the one that it can save."""
    four_bits, eight_bits = kind.weights / 2 * (1 + 5 / 32), kind.weights * (1 + 2 / 16)
    return {BlockType.F32: 4.0, BlockType.Q4_0: four_bits, BlockType.Q4_1: four_bits, BlockType.Q4_K: four_bits}.get(
        kind, eight_bits
    )


class Engine:
    """A peer in a process of its own."""

    def __init__(self, name: str, python: str, model: Path, room: int) -> None:
        self.name = name
        command = [python, str(ADAPTERS_FILE), name, str(model), str(THREADS), str(room)]
        environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
        self._log = open(os.devnull if not os.environ.get("ONHAND_DEBUG") else "/dev/stderr", "w")  # noqa: SIM115, PTH123
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        self.load_seconds = float(self._answer()["seconds"])

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}; ONHAND_DEBUG=1 shows what it said")
        return json.loads(line)

    def ask(self, **request: object) -> Any:
        assert self._process.stdin is not None
        time.sleep(PAUSE_SECONDS)
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def resident_bytes(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


def interpreter(name: str) -> str | None:
    """The Python that has an engine, if one has."""
    module = MODULES.get(name)
    if module is None:
        return sys.executable
    for python in filter(None, (os.environ.get("ONHAND_BENCH_PYTHON"), sys.executable)):
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
        if subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


def model_for(name: str, package: ModelPackage, room: int) -> Path:
    """What an engine loads: the file itself, or what was made of it. Raises ValueError where nothing can be made."""
    if name == "onhand":
        return package.folder
    if name == "openvino":
        with GgufFile.open(package.weights) as file:
            if (architecture := file.string("general.architecture")) not in ("llama", "qwen2", "qwen3"):
                raise ValueError(f"OpenVINO GenAI reads no GGUF file of {architecture}")
    if name == "ort-genai":
        folder = genai_folder(package.weights, package.folder / f"genai-{room}", room)
        set_threads(folder, THREADS)
        return folder
    return package.weights


def start(names: Sequence[str], work: Workload) -> dict[str, Engine]:
    engines = {}
    for name in names:
        python = interpreter(name)
        if python is None:
            print(f"{name} is not installed: left out")
            continue
        try:
            model = model_for(name, work.package, work.room)
        except ValueError as error:
            print(f"{name}: {error}: left out")
            continue
        engines[name] = Engine(name, python, model, work.room)
    return engines


def rounds_of(engines: Mapping[str, Engine], request: dict[str, object], rounds: int, reader: Run | None) -> Results:
    """Every engine once a round, after one round that does not count."""
    results = Results({name: [] for name in engines}, {}, [])
    for number in range(rounds + 1):
        print(f"{request['do']}: round {number} of {rounds}", file=sys.stderr, flush=True)
        if number and reader is not None:
            results.seconds_a_byte.append(reader())
        for name, engine in engines.items():
            answer = engine.ask(**request)
            results.tokens[name] = answer.get("tokens", [])
            if number:
                results.seconds[name].append(answer["seconds"])
    return results


@dataclass(frozen=True, slots=True)
class Results:
    seconds: dict[str, list[float]]
    tokens: dict[str, list[int]]
    seconds_a_byte: list[float]


def show_decode(results: Results, work: Workload) -> None:
    bandwidth = 1 / statistics.median(results.seconds_a_byte)
    print(f"\nmemory is read at {bandwidth / 1e9:.1f} GB/s ({THREADS} threads, numpy's maximum of 512 MiB each)")
    print(f"\n| decode at {work.context} | tok/s | ms | time / onhand's | MB a token | of the roofline | same tokens |")
    print("|---|---|---|---|---|---|---|")
    expected = results.tokens["onhand"]
    for name, seconds in results.seconds.items():
        each = statistics.median(seconds) / work.steps
        ratio = median_ratio(seconds, results.seconds["onhand"])
        size = work.read_bytes(name)
        share = median_ratio([size * s for s in results.seconds_a_byte], [s / work.steps for s in seconds])
        same = next(
            (i for i, (a, b) in enumerate(zip(expected, results.tokens[name], strict=True)) if a != b), work.steps
        )
        print(f"| {name} | {1 / each:.2f} | {each * 1e3:.1f} | {ratio:.2f} | {size / 1e6:.0f} | {share:.0%} | {same} |")


def show_prefill(results: Results) -> None:
    print(f"\n| prefill of {PROMPT} | tok/s | s | time / onhand's |\n|---|---|---|---|")
    for name, seconds in results.seconds.items():
        each = statistics.median(seconds)
        ratio = median_ratio(seconds, results.seconds["onhand"])
        print(f"| {name} | {PROMPT / each:.1f} | {each:.2f} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*MODELS, *SHAPES), default="smollm2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prefill-rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=512, help="tokens in the KV cache when decoding begins")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--engines", default=",".join(ADAPTERS))
    parser.add_argument("--matrices", choices=get_args(Matrices), default="q4_0", help="of the random models")
    parser.add_argument("--embedding", choices=get_args(Embedding), default="q6_k", help="of the random models")
    arguments = parser.parse_args()
    name = arguments.model
    package = real_package(name) if name in MODELS else shape_package(name, arguments.matrices, arguments.embedding)
    work = Workload(package=package, context=arguments.context, steps=arguments.steps)
    names = list(dict.fromkeys(["onhand", *arguments.engines.split(",")]))
    print(f"{machine()}; {package.name}, {THREADS} threads, {arguments.rounds} rounds", flush=True)
    engines = start(names, work)
    decode = {"do": "decode", "ids": work.prompt(name, work.context), "steps": work.steps}
    show_decode(rounds_of(engines, decode, arguments.rounds, memory_reader(THREADS)), work)
    prefill: dict[str, object] = {"do": "prefill", "ids": work.prompt(name, PROMPT)}
    show_prefill(rounds_of(engines, prefill, arguments.prefill_rounds, None))
    print("\n| | resident, MB | loading until a first token, s |\n|---|---|---|")
    for engine in engines.values():
        print(f"| {engine.name} | {engine.resident_bytes() / 1e6:.0f} | {engine.load_seconds:.1f} |")
        engine.close()
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
