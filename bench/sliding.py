"""What a sliding window costs in quality: perplexity of prose behind the first window, against reading all anew.

python bench/sliding.py [--model smollm2] [--tokens 8000] [--window 1024] [--sinks 4 --block 256]

Takes minutes a row for both models. ± is one standard error of the difference, token by token.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from common import machine

from onhand.options import CacheOptions
from onhand_cpu import CpuRuntime
from support.real import MODELS, prose_ids, real_tokenizer
from support.sliding import Losses, UnrotatedRuntime, excess, recomputed, slid, sliding_runtime

STRIDE = 64


def ways(name: str, ids: list[int], window: int, settings: list[CacheOptions]) -> Iterator[tuple[str, Losses]]:
    """Each way to go on when the window is full; the first is what the others are held against."""
    runtime = sliding_runtime(name, window, CpuRuntime)
    first = int(ids[0] == real_tokenizer(name).bos_id)
    yield f"recompute, stride {STRIDE}" + ", BOS kept" * first, recomputed(runtime, ids, STRIDE, kept=first)
    for options in settings:
        yield described(options), slid(runtime, ids, options)
    runtime.close()
    unrotated = sliding_runtime(name, window, UnrotatedRuntime)
    yield "no re-rotation (control)", slid(unrotated, ids, CacheOptions())
    unrotated.close()


def described(options: CacheOptions) -> str:
    if options == CacheOptions():
        return "slide, default"
    sinks = "default" if options.sinks is None else options.sinks
    block = f", blocks of {options.evict_tokens}" if options.evict_tokens else ""
    return f"slide, {sinks} sinks{block}" + " (control)" * (options.sinks == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, help="one more row")
    parser.add_argument("--block", type=int)
    arguments = parser.parse_args()
    settings = [CacheOptions(), CacheOptions(sinks=4, evict_tokens=arguments.window // 4), CacheOptions(sinks=0)]
    if arguments.sinks is not None or arguments.block is not None:
        settings.append(CacheOptions(sinks=arguments.sinks, evict_tokens=arguments.block))
    print(f"{machine()}; {arguments.tokens} tokens, a window of {arguments.window}")
    print("| model | | perplexity | more than the first |\n|---|---|---|---|")
    for name in arguments.model or MODELS:
        ids, baseline = prose_ids(name, arguments.tokens), None
        for way, losses in ways(name, ids, arguments.window, settings):
            baseline = losses if baseline is None else baseline
            error = (losses - baseline).std() / len(losses) ** 0.5
            more = excess(losses, baseline)
            perplexity = np.exp(losses.mean())
            print(f"| {name} | {way} | {perplexity:.2f} | {more:+.2%} ± {(1 + more) * error:.2%} |", flush=True)


if __name__ == "__main__":
    main()
