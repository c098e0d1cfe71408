"""The engine's promises on real models: warm equals cold, batched equals alone, guessed equals plain, flat for ever."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cache

import pytest

from onhand.chat import Chat
from onhand.decoding.engine import Engine
from onhand.decoding.token_chat import TokenChat
from onhand.decoding.window import Prompt
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.types import Event, EvictedEvent, Message, PrefillEvent, TextEvent
from onhand_cpu import CpuRuntime, backend
from support.real import MODELS, prose_ids, real_package, real_tokenizer
from support.scripted import reply_of

pytestmark = pytest.mark.real_model

GREEDY = GenerationOptions(temperature=0, max_tokens=24, speculate=False)
WINDOW = 256


@cache
def runtime(name: str, threads: int = 2, slots: int = 1) -> CpuRuntime:
    cache_options = CacheOptions(context_tokens=WINDOW, slots=slots)
    return backend.load(real_package(name), cache_options, DeviceOptions(threads=threads))


def engine(name: str, threads: int = 2, slots: int = 1) -> Engine:
    """With nothing in its slots."""
    fresh = runtime(name, threads, slots)
    for slot in range(slots):
        fresh.truncate(slot, 0)
    return Engine(fresh, real_tokenizer(name), CacheOptions(overflow="error"))


def prompts(name: str, count: int) -> Iterator[list[int]]:
    prose, random_numbers = prose_ids(name, 4000), random.Random(5)
    for _ in range(count):
        first = random_numbers.randrange(len(prose) - 200)
        yield prose[first : first + random_numbers.randrange(10, 120)]


@pytest.mark.parametrize("name", MODELS)
def test_a_reply_is_the_same_warm_and_cold_with_one_thread_and_two(name: str) -> None:
    """BR-32: each prompt cold, then after others with the cache of the last, then with one thread."""
    for ids in prompts(name, 3):
        cold = reply_of(engine(name).stream(Prompt(ids), GREEDY))
        warm_engine = engine(name)
        reply_of(warm_engine.stream(Prompt(ids[: len(ids) // 2]), GREEDY))
        warm = reply_of(warm_engine.stream(Prompt(ids), GREEDY))
        again = reply_of(warm_engine.stream(Prompt(ids), GREEDY))
        single = reply_of(engine(name, threads=1).stream(Prompt(ids), GREEDY))
        assert warm.usage.cached_tokens >= len(ids) // 2 - 1
        assert again.usage.cached_tokens == len(ids) - 1
        assert warm.text == again.text == single.text == cold.text


@pytest.mark.parametrize("name", MODELS)
def test_replies_that_run_together_are_what_each_is_alone(name: str) -> None:
    alone = {tuple(ids): reply_of(engine(name).stream(Prompt(ids), GREEDY)).text for ids in prompts(name, 4)}
    together = engine(name, slots=3)
    with ThreadPoolExecutor(len(alone)) as pool:
        texts = pool.map(lambda ids: reply_of(together.stream(Prompt(ids), GREEDY)).text, alone)
        assert list(texts) == list(alone.values())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", MODELS)
def test_guesses_change_nothing(name: str, temperature: float) -> None:
    options = replace(GREEDY, temperature=temperature, seed=7, max_tokens=48)
    (ids,) = prompts(name, 1)
    ids = [*ids, *ids]  # so that there is something to guess from
    plain = reply_of(engine(name).stream(Prompt(ids), options))
    guessed = reply_of(engine(name).stream(Prompt(ids), replace(options, speculate=True)))
    assert guessed.text == plain.text
    assert guessed.usage.guessed_tokens > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_window_that_slid_goes_on_speaking(name: str) -> None:
    """BR-01: text of three windows, none of it noise: the same few hundred words that the model uses."""
    small = CacheOptions(context_tokens=WINDOW)
    sliding = Engine(runtime(name), real_tokenizer(name), small)
    runtime(name).truncate(0, 0)
    options = GenerationOptions(temperature=0.7, seed=2, max_tokens=2 * WINDOW, repetition_penalty=1.1)
    events = list(sliding.stream(Prompt(prose_ids(name, 100)), options))
    reply = reply_of(event for event in events if not evicted(event))
    slid = sum(map(evicted, events))
    assert slid >= 8 or reply.finish_reason == "stop"
    words = reply.text[-2000:].split()
    assert sum(word.strip(".,;:!?'\"()-").isalpha() for word in words) > 0.6 * len(words)
    assert "\ufffd" not in reply.text[-2000:]


@pytest.mark.parametrize("name", MODELS)
def test_behind_a_window_that_slid_an_edited_prompt_is_answered_as_from_scratch(name: str) -> None:
    """BR-02: what the slide moved is never taken for what the edited prompt begins with."""
    prose = prose_ids(name, 400)
    sliding = Engine(runtime(name), real_tokenizer(name), CacheOptions())
    runtime(name).truncate(0, 0)
    long = reply_of(e for e in sliding.stream(Prompt(prose[:200]), replace(GREEDY, max_tokens=120)) if not evicted(e))
    assert long.usage.evicted_tokens > 0
    for shared in (160, 60, 2):
        edited = [*prose[:shared], *prose[300:340]]
        warm = reply_of(sliding.stream(Prompt(edited), GREEDY))
        assert 0 < warm.usage.cached_tokens <= shared
        assert warm.text == reply_of(engine(name, threads=1).stream(Prompt(edited), GREEDY)).text


@pytest.mark.parametrize("when", ["reading", "first text", "in ask"])
def test_a_reply_that_nobody_wants_any_more_ends_within_a_second(when: str) -> None:
    """BR-44: closed while its long prompt is read, after its first words, and cancelled by another thread."""
    tokenizer = real_tokenizer("smollm2")
    assert tokenizer.chat_template
    loaded = backend.load(real_package("smollm2"), CacheOptions(context_tokens=6000), DeviceOptions(threads=2))
    token_chat = TokenChat(
        Engine(loaded, tokenizer, CacheOptions()), PromptEncoder(ChatTemplate(tokenizer.chat_template), tokenizer)
    )
    chat = Chat(token_chat, None, replace(GREEDY, max_tokens=2000, temperature=0.7, seed=1))
    question = "word " * 4000 if when == "reading" else "Write a very long story, without an end."
    with closing(chat.stream(question)) as events, ThreadPoolExecutor(1) as pool:
        if when == "in ask":
            reply = pool.submit(chat.ask, question)
            while not loaded.length(0):
                time.sleep(0.01)
            started = time.monotonic()
            chat.cancel()
            assert reply.result(timeout=10).finish_reason == "cancelled"
        else:
            next(event for event in events if isinstance(event, PrefillEvent if when == "reading" else TextEvent))
            started = time.monotonic()
            events.close()
    assert time.monotonic() - started < 1
    used, read = time.process_time(), loaded.length(0)
    time.sleep(0.5)
    assert time.process_time() - used < 0.25
    assert loaded.length(0) == read < 4000
    said = "".join(message.content for message in chat.messages if message.role == "assistant")
    assert len(said) < 200
    assert chat.ask("What is rain?", replace(GREEDY, max_tokens=8)).usage.completion_tokens == 8
    loaded.close()


def evicted(event: Event) -> bool:
    return isinstance(event, EvictedEvent)


def test_a_chat_reads_again_no_more_than_the_last_turn() -> None:
    """BR-47: what is read each turn does not grow."""
    tokenizer = real_tokenizer("smollm2")
    assert tokenizer.chat_template
    encoder = PromptEncoder(ChatTemplate(tokenizer.chat_template), tokenizer)
    chat = Chat(TokenChat(engine("smollm2"), encoder), "Be brief.", replace(GREEDY, max_tokens=12))
    for turn in range(6):
        usage = chat.ask(f"Name something that is number {turn}.").usage
        new = usage.prompt_tokens - usage.cached_tokens
        question = len(encoder.encode([Message("user", f"Name something that is number {turn}.")]))
        assert turn == 0 or new <= question + 4, turn
