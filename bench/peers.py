"""onhand and its peers on the same file, interleaved in one run, 2 threads each: decode and prefill.

python bench/peers.py [--rounds 15] [--model smollm2]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
from common import Run, interleaved, machine, median_ratio, timed

from onhand.backends import Chunk
from onhand.decoding.engine import PREFILL_CHUNK_TOKENS, Engine
from onhand.decoding.window import Prompt
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.spec import rope_tables
from onhand.options import GenerationOptions
from onhand.types import DoneEvent
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import MODELS, prose_ids, real_package, real_tokenizer

PROMPT, STEPS, THREADS, CONTEXT = 512, 64, 2, 1024


def onhand_runtime(name: str) -> CpuRuntime:
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    return CpuRuntime(spec, artifact_folder(package) / "decoder.onnx", threads=THREADS, context_tokens=CONTEXT)


def onhand_engines(name: str) -> dict[str, Run]:
    """The product's own token loop, greedy, text and all; and what it spends on the prompt."""
    runtime = onhand_runtime(name)
    engine = Engine(runtime, real_tokenizer(name), chunk_tokens=PREFILL_CHUNK_TOKENS)
    ids = prose_ids(name, PROMPT)

    def prefill() -> float:
        runtime.truncate(0, 0)
        return timed(lambda: [runtime.forward([Chunk(slot=0, tokens=ids[c : c + 256])]) for c in range(0, PROMPT, 256)])

    def decode() -> float:
        options = GenerationOptions(temperature=0, max_tokens=STEPS, speculate=False)
        *_, done = engine.stream(Prompt(ids[:128]), options)
        assert isinstance(done, DoneEvent)
        usage = done.reply.usage
        return usage.decode_seconds / (usage.completion_tokens - 1)

    return {"prefill": prefill, "decode": decode}


def bare_engine(name: str) -> Run:
    """The same graph in a loop that binds once, then per step writes the inputs, runs, and takes the best logit."""
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.force_spinning_stop", "1")
    model = str(artifact_folder(package) / "decoder.onnx")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    io = session.io_binding()
    step: dict[str, np.ndarray] = {"ids": np.zeros((1, 1), np.int64), "positions": np.zeros((1, 2), np.int64)}
    step |= {name: np.zeros(1, np.int32) for name in ("last_place", "total_length")}
    step |= {"new_tokens": np.full(1, 2, np.int32), "rows": np.zeros(1, np.int64)}
    step |= {"attended_rows": np.zeros(2, np.int64), "kept_rows": np.zeros(1, np.int64)}
    step["logits"] = np.empty((1, spec.vocab_size), np.float32)
    arrays = dict(step)
    for i, rope in enumerate(spec.ropes):
        arrays[f"cos.{i}"], arrays[f"sin.{i}"] = rope_tables(rope, CONTEXT, CONTEXT)
    for i in range(len(spec.layers)):
        for kind in ("keys", "values"):
            arrays[f"{kind}.{i}"] = np.zeros((1, spec.kv_heads, CONTEXT, spec.head_size), np.float32)
    values = {key: ort.OrtValue.ortvalue_from_numpy(array) for key, array in arrays.items()}
    for key, value in values.items():
        if key != "logits":
            io.bind_ortvalue_input(key, value)
        if key.startswith(("keys.", "values.")):
            io.bind_ortvalue_output(f"new_{key}", value)
    io.bind_ortvalue_output("logits", values["logits"])

    def steps() -> None:
        token = 1
        for position in range(128, 128 + STEPS - 1):
            step["ids"][0, 0] = token
            step["positions"][0] = position, position + 1
            step["last_place"][0] = position + 1
            step["total_length"][0] = position + 2
            session.run_with_iobinding(io)
            token = int(step["logits"][0].argmax())

    return lambda: timed(steps) / (STEPS - 1)


def llama_cpp_engines(name: str) -> dict[str, Run]:
    from llama_cpp import Llama

    path = str(real_package(name).weights)
    model = Llama(path, n_ctx=CONTEXT, n_threads=THREADS, n_threads_batch=THREADS, n_batch=PROMPT, verbose=False)
    ids = prose_ids(name, PROMPT)

    def prefill() -> float:
        model.n_tokens = 0
        return timed(lambda: model.eval(ids))

    def decode() -> float:
        model.n_tokens = 0
        model.eval(ids[:128])

        def steps() -> None:
            token = 1
            for _ in range(STEPS - 1):
                model.eval([token])
                token = int(np.argmax(model._scores[-1]))

        return timed(steps) / (STEPS - 1)

    return {"prefill": prefill, "decode": decode}


PEERS: dict[str, Callable[[str], dict[str, Run]]] = {"llama.cpp": llama_cpp_engines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    arguments = parser.parse_args()
    name = arguments.model
    engines = {"onhand": onhand_engines(name)}
    for peer, make in PEERS.items():
        try:
            engines[peer] = make(name)
        except ImportError:
            print(f"{peer} is not installed: left out")
    print(f"{machine()}; {name}, {THREADS} threads, {arguments.rounds} rounds")
    for kind, tokens in (("decode", 1), ("prefill", PROMPT)):
        runs = {engine: kinds[kind] for engine, kinds in engines.items()}
        if kind == "decode":
            runs["bare loop"] = bare_engine(name)
        seconds = interleaved(runs, arguments.rounds)
        for engine, values in seconds.items():
            median = statistics.median(values)
            ratio = median_ratio(values, seconds["onhand"])
            speed = f"{tokens / median:8.1f} tok/s {median * 1e3:8.2f} ms"
            print(f"{kind:8} {engine:10} {speed}   time / onhand's {ratio:.2f}")


if __name__ == "__main__":
    main()
