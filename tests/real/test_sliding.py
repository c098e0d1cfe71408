"""What a window that slides costs a real model: little in quality, nothing in memory.

Over 512 tokens the costs have a standard error of one percent: this sees what is broken; `bench/sliding.py` measures.
"""

from __future__ import annotations

from functools import cache

import psutil
import pytest

from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.options import CacheOptions, GenerationOptions
from onhand.types import DoneEvent, Event
from onhand_cpu import CpuRuntime
from support.real import MODELS, prose_ids, real_tokenizer
from support.sliding import Losses, UnrotatedRuntime, endless_runtime, excess, recomputed, slid, sliding_runtime

pytestmark = pytest.mark.real_model

WINDOW, TOKENS = 512, 1024

DEFAULT = CacheOptions()
FEW_SINKS = CacheOptions(sinks=4, evict_tokens=WINDOW // 4)
NO_SINKS = CacheOptions(sinks=0)


@cache
def recomputed_prose(name: str) -> Losses:
    """Where the model reads the last window anew every 64 tokens; its BOS, if it has one, stays in front."""
    ids = prose_ids(name, TOKENS)
    runtime = sliding_runtime(name, WINDOW, CpuRuntime)
    losses = recomputed(runtime, ids, kept=int(ids[0] == real_tokenizer(name).bos_id))
    runtime.close()
    return losses


def cost(name: str, options: CacheOptions, kind: type[CpuRuntime] = CpuRuntime) -> float:
    """How much higher than that the perplexity is where the window slides."""
    runtime = sliding_runtime(name, WINDOW, kind)
    losses = slid(runtime, prose_ids(name, TOKENS), options)
    runtime.close()
    return excess(losses, recomputed_prose(name))


@pytest.mark.parametrize("name", MODELS)
def test_sliding_costs_less_than_one_and_a_half_percent_of_perplexity(name: str) -> None:
    assert cost(name, DEFAULT) <= 0.015


def test_four_sinks_and_large_blocks_cost_less_than_three_percent() -> None:
    assert cost("smollm2", FEW_SINKS) <= 0.03


def test_without_sinks_it_would_cost_a_quarter_more() -> None:
    assert cost("smollm2", NO_SINKS) >= 0.25


@pytest.mark.parametrize("name", MODELS)
def test_without_rotating_what_moves_perplexity_would_double(name: str) -> None:
    assert cost(name, DEFAULT, UnrotatedRuntime) >= 1


def test_a_text_without_an_end_takes_no_more_memory() -> None:
    window, tokens = 128, 3000
    runtime, process = endless_runtime("smollm2", window), psutil.Process()
    engine = Engine(runtime, real_tokenizer("smollm2"), CacheOptions())
    options = GenerationOptions(temperature=0.8, seed=1, max_tokens=tokens, speculate=False)
    sizes: list[int] = []
    last: Event | None = None
    for last in engine.stream(Prompt(prose_ids("smollm2", 32)), options):  # noqa: B007  # the last is looked at
        if len(runtime.forward_seconds) > 1000 * (1 + len(sizes)):
            sizes.append(process.memory_info().rss)
    assert isinstance(last, DoneEvent)
    assert last.reply.usage.completion_tokens == tokens
    assert last.reply.usage.evicted_tokens > tokens - window
    assert runtime.longest == window
    assert process.memory_info().rss - sizes[0] <= 8e6
    engine.close()
