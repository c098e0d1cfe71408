"""What a token costs behind 512 tokens and behind 4,096, with a KV cache of 32 bits and of 8; memory of a token held.

python bench/held.py [--model llama-3b] [--held 512,4096] [--rounds 9]

Keys and values are drawn at random and restored into the cache, which spares reading thousands of tokens: a step takes
the same time whatever they are. One step each, in turns; ratios are medians of those round by round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Literal, get_args

import numpy as np
from common import Run, interleaved, machine, median_ratio, timed
from shapes import SHAPES, Embedding, Matrices, shape_package

from onhand.backends import Chunk, LayerKv
from onhand.formats.package import ModelPackage
from onhand.formats.spec import DecoderSpec
from onhand.options import CacheOptions, DeviceOptions
from onhand_cpu import CpuBackend
from support.real import MODELS, real_package

THREADS = 2


def layers(spec: DecoderSpec, tokens: int) -> Iterator[LayerKv]:
    numbers = np.random.default_rng(0)
    shape = (spec.kv_heads, tokens, spec.head_size)
    for _ in spec.layers:
        yield numbers.standard_normal(shape, np.float32), numbers.standard_normal(shape, np.float32)


def steps(package: ModelPackage, bits: Literal[8, 32], counts: list[int]) -> Iterator[tuple[tuple[int, int], Run]]:
    """For each count, a run that reads one token behind so many; each has a slot of its own."""
    cache = CacheOptions(kv_bits=bits, context_tokens=max(counts) + 1, slots=len(counts))
    runtime = CpuBackend().load(package, cache, DeviceOptions(threads=THREADS))
    print(f"{bits} bits: {runtime.cache.bytes_per_token} bytes a token", flush=True)

    def step(slot: int, held: int) -> float:
        runtime.truncate(slot, held)
        return timed(lambda: runtime.forward([Chunk(slot=slot, tokens=[7], rows="last")]))

    for slot, held in enumerate(counts):
        runtime.restore(slot, layers(runtime.spec, held), held)
        yield (bits, held), partial(step, slot, held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*MODELS, *SHAPES), default="llama-3b")
    parser.add_argument("--held", default="512,4096", help="tokens in the cache")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--matrices", choices=get_args(Matrices), default="q4_0", help="of the random models")
    parser.add_argument("--embedding", choices=get_args(Embedding), default="q6_k", help="of the random models")
    arguments = parser.parse_args()
    name = arguments.model
    package = real_package(name) if name in MODELS else shape_package(name, arguments.matrices, arguments.embedding)
    counts = [int(count) for count in arguments.held.split(",")]
    print(f"{machine()}; {package.name}, {THREADS} threads, {arguments.rounds} rounds", flush=True)
    runs: dict[tuple[int, int], Run] = {}
    for bits in (32, 8):
        runs |= steps(package, bits, counts)
    found = interleaved(runs, arguments.rounds)
    print("\n| bits | tokens held | ms a token | against 32 bits and the fewest |\n|---|---|---|---|")
    for (bits, held), seconds in found.items():
        ratio = median_ratio(seconds, found[32, counts[0]])
        print(f"| {bits} | {held} | {statistics.median(seconds) * 1e3:.1f} | {ratio:.2f} |")
    print(machine())


if __name__ == "__main__":
    main()
