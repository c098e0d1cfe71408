"""Many conversations on one model, and long ones.

python bench/serving.py [--model llama-3b] [--only batching,reuse,waiting] [--rounds 5]

batching: tokens per second of 4 conversations at once against one; their prompts are in the cache.
reuse: time to the first token of a turn behind a history of 2,000 tokens, which the cache holds, against a prompt of
the same turn alone, of which it holds nothing.
waiting: time to the first token of short prompts while a prompt of 4,000 tokens is being read, and alone.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import get_args

import numpy as np
from common import interleaved, machine, median_ratio, percentile, timed
from shapes import SHAPES, Embedding, Matrices, shape_package

from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand.formats.tokenizer import Tokenizer
from onhand.options import GenerationOptions
from onhand.types import DoneEvent, Usage
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import MODELS, real_package

THREADS = 2
_salts = itertools.count(1)


def engine_of(package: ModelPackage, *, slots: int, context: int) -> Engine:
    with GgufFile.open(package.weights) as file:
        spec, tokenizer = read_spec(file), Tokenizer.from_gguf(file)
    graph = artifact_folder(package) / "decoder.onnx"
    return Engine(CpuRuntime(spec, graph, threads=THREADS, context_tokens=context, slots=slots), tokenizer)


def random_ids(count: int) -> list[int]:
    """Another prompt each time, of which no cache holds anything."""
    ids = np.random.default_rng(next(_salts)).integers(0, 200, count)
    return [int(token) for token in ids]


def reply(engine: Engine, ids: list[int], tokens: int) -> Usage:
    options = GenerationOptions(temperature=0, max_tokens=tokens, speculate=False)
    *_, done = engine.stream(Prompt(ids), options)
    assert isinstance(done, DoneEvent)
    return done.reply.usage


def batching(package: ModelPackage, rounds: int, tokens: int = 32, prompt: int = 64) -> None:
    engine = engine_of(package, slots=4, context=prompt + 2 * tokens)
    prompts = [random_ids(prompt) for _ in range(4)]
    spoken: dict[int, int] = {}

    def together(count: int) -> Callable[[], float]:
        """Seconds for a token of one of so many conversations; the slowest counts."""

        def run() -> float:
            usages: list[Usage] = []
            threads = [
                threading.Thread(target=lambda ids=ids: usages.append(reply(engine, ids, tokens)))
                for ids in prompts[:count]
            ]
            seconds = timed(lambda: run_all(threads))
            spoken[count] = sum(usage.completion_tokens for usage in usages)
            assert len(usages) == count
            return seconds / spoken[count]

        return run

    found = interleaved({str(count): together(count) for count in (4, 1, 2)}, rounds)
    print("\n| conversations at once | tok/s of all | of one | against one | tokens |\n|---|---|---|---|---|")
    for count in (1, 2, 4):
        rate = 1 / statistics.median(found[str(count)])
        ratio = median_ratio(found["1"], found[str(count)])
        print(f"| {count} | {rate:.2f} | {rate / count:.2f} | {ratio:.2f} | {spoken[count]} |", flush=True)
    engine.close()


def reuse(package: ModelPackage, rounds: int, history: int = 2000, turn: int = 32) -> None:
    engine = engine_of(package, slots=2, context=history + turn + 16)
    known = random_ids(history)
    reply(engine, [*known, 1], 1)
    (held,) = [slot for slot in engine.slots if slot.ids[:history] == known]

    def warm() -> float:
        held.cut_back(history)
        return timed(lambda: reply(engine, [*known, *random_ids(turn)], 1))

    def cold() -> float:
        for slot in engine.slots:
            if slot is not held:
                slot.cut_back(0)
        return timed(lambda: reply(engine, random_ids(turn), 1))

    found = interleaved({"warm": warm, "cold": cold}, rounds)
    assert held.ids[:history] == known
    ratio = median_ratio(found["warm"], found["cold"])
    print(f"\n| a turn of {turn} tokens | time to the first token, s |\n|---|---|")
    print(f"| alone, nothing cached | {statistics.median(found['cold']):.3f} |")
    print(f"| behind {history} cached tokens | {statistics.median(found['warm']):.3f} |")
    print(f"| ratio | {ratio:.2f} |", flush=True)
    engine.close()


def waiting(package: ModelPackage, rounds: int, long: int = 4000, short: int = 24) -> None:
    engine = engine_of(package, slots=2, context=long + 16)
    first = [timed(lambda: reply(engine, random_ids(short), 1)) for _ in range(2 + 2 * rounds)][2:]
    alone = timed(lambda: reply(engine, random_ids(long), 1))
    reader = threading.Thread(target=reply, args=(engine, random_ids(long), 1))
    during = []
    started = time.perf_counter()
    reader.start()
    time.sleep(1)  # the long prompt has its slot
    while reader.is_alive():
        during.append(timed(lambda: reply(engine, random_ids(short), 1)))
    seconds = time.perf_counter() - started
    print(f"\n| prompts of {short} tokens, time to the first token | P50, s | P99, s | prompts |\n|---|---|---|---|")
    for name, times in (("alone", first), (f"while {long} tokens are read", during)):
        print(f"| {name} | {percentile(times, 50):.3f} | {percentile(times, 99):.3f} | {len(times)} |")
    print(f"\nthe long prompt took {alone:.1f} s alone, {seconds:.1f} s with the short ones", flush=True)
    engine.close()


PARTS = {"batching": batching, "reuse": reuse, "waiting": waiting}


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*MODELS, *SHAPES), default="llama-3b")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--matrices", choices=get_args(Matrices), default="q4_0", help="of the random models")
    parser.add_argument("--embedding", choices=get_args(Embedding), default="q6_k", help="of the random models")
    arguments = parser.parse_args()
    name = arguments.model
    package = real_package(name) if name in MODELS else shape_package(name, arguments.matrices, arguments.embedding)
    print(f"{machine()}; {package.name}, {THREADS} threads, {arguments.rounds} rounds", flush=True)
    for part in arguments.only.split(","):
        PARTS[part](package, arguments.rounds)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
