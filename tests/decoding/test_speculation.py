"""Guesses make replies faster or do nothing; they never change one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onhand.decoding.engine import Engine
from onhand.decoding.speculation import Guess, Guesser, PromptLookup, Speculation
from onhand.decoding.window import Prompt
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.types import EvictedEvent, Reply
from onhand_cpu import CpuRuntime, backend
from support.packages import tiny_package
from support.scripted import byte_tokenizer, reply_of
from support.tiny import ARCHITECTURES, VOCAB

GREEDY = GenerationOptions(temperature=0, max_tokens=60)
SAMPLED = GenerationOptions(temperature=0.8, seed=3, max_tokens=60, repetition_penalty=1.3)
PROMPT = list(b"abcabcabdabc ")


class Scripted:
    """Guesses what it is told, whatever was said."""

    def __init__(self, guesses: Sequence[Sequence[int]]) -> None:
        self._guesses = iter(guesses)

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        tokens = next(self._guesses, ())[:most]
        return Guess(tokens, 0) if tokens else None


class Oracle:
    """Guesses what the reply without guesses was, with some of it wrong."""

    def __init__(self, whole: Sequence[int], wrong_every: int) -> None:
        self._whole, self._wrong_every = whole, wrong_every

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        tokens = list(self._whole[len(ids) : len(ids) + min(most, 6)])
        for place in range(len(ids) % self._wrong_every, len(tokens), self._wrong_every):
            tokens[place] = (tokens[place] + 1) % VOCAB
        return Guess(tokens, 1) if tokens else None


@pytest.fixture(scope="module", params=ARCHITECTURES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuRuntime:
    package = tiny_package(tmp_path_factory.mktemp("tiny"), request.param)
    backend.prepare(package)
    return backend.load(package, CacheOptions(context_tokens=64), DeviceOptions(threads=2))


def reply(runtime: CpuRuntime, options: GenerationOptions, guesser: Callable[[], Guesser] = PromptLookup) -> Reply:
    engine = Engine(runtime, byte_tokenizer(), CacheOptions(evict_tokens=8), guesser=guesser)
    return reply_of(e for e in engine.stream(Prompt(PROMPT), options) if not isinstance(e, EvictedEvent))


@given(guesses=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=9), max_size=60), sampled=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_guess_changes_a_reply(runtime: CpuRuntime, guesses: list[list[int]], sampled: bool) -> None:
    """Also while the window slides: 64 tokens for a prompt of 13 and a reply of 60."""
    options = SAMPLED if sampled else GREEDY
    plain = reply(runtime, replace(options, speculate=False))
    guessed = reply(runtime, replace(options, speculate=True), lambda: Scripted(guesses))
    assert guessed.text == plain.text
    assert guessed.usage.completion_tokens == plain.usage.completion_tokens


@pytest.mark.parametrize("wrong_every", [1, 2, 5, 1000])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_right_guesses_are_taken_and_change_nothing(
    runtime: CpuRuntime, options: GenerationOptions, wrong_every: int
) -> None:
    engine = Engine(runtime, byte_tokenizer(), CacheOptions(evict_tokens=8))
    plain = reply_of(
        e for e in engine.stream(Prompt(PROMPT), replace(options, speculate=False)) if not isinstance(e, EvictedEvent)
    )
    whole = list(engine.slots[0].ids)
    guessed = reply(runtime, replace(options, speculate=True), lambda: Oracle(whole, wrong_every))
    assert guessed.text == plain.text
    assert (guessed.usage.guessed_tokens > 10) == (wrong_every > 1)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_draft_model_changes_nothing_and_its_right_guesses_are_taken(
    options: GenerationOptions, seed: int, tmp_path: Path
) -> None:
    """The model drafts for itself, which is always right when greedy; and one with other weights, which hardly is."""
    packages = [tiny_package(tmp_path / name, seed=s) for name, s in (("large", 0), ("small", seed))]
    for package in packages:
        backend.prepare(package)
    large, small = (
        backend.load(package, CacheOptions(context_tokens=tokens), DeviceOptions(threads=1))
        for package, tokens in zip(packages, (64, 40), strict=True)
    )
    plain = reply(large, replace(options, speculate=False))
    engine = Engine(large, byte_tokenizer(), CacheOptions(evict_tokens=8), draft=small)
    events = engine.stream(Prompt(PROMPT), replace(options, speculate=True))
    guessed = reply_of(e for e in events if not isinstance(e, EvictedEvent))
    assert guessed.text == plain.text
    if seed == 0 and options is GREEDY:
        assert guessed.usage.guessed_tokens > 20
    engine.close()


def test_a_repetition_is_found_by_its_longest_match() -> None:
    assert PromptLookup().guess([1, 2], 4) is None
    assert PromptLookup().guess([1, 2, 3, 9, 8, 7], 4) is None
    lookup = PromptLookup()
    ids = [5, 1, 2, 3, 10, 11, 6, 1, 2, 4, 20, 21, 5, 1, 2]
    found = lookup.guess(ids, 3)
    assert found is not None
    assert found.tokens == [3, 10, 11]
    assert found.kind == 1
    grown = [*ids, 3]
    found = lookup.guess(grown, 2)
    assert found is not None
    assert (found.tokens, found.kind) == ([10, 11], 2)


def test_a_run_of_one_token_is_guessed_to_go_on() -> None:
    found = PromptLookup().guess([7] * 20, 5)
    assert found is not None
    assert found.tokens[:1] == [7]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 6))
def test_what_is_guessed_did_follow_those_tokens_before(ids: list[int], most: int) -> None:
    found = PromptLookup().guess(ids, most)
    if found is None:
        return
    assert 1 <= len(found.tokens) <= most
    text = "".join(map(str, ids))
    matched = "".join(map(str, [*ids[-2:], *found.tokens]))
    assert matched in text


def test_guesses_that_are_never_right_stop_and_those_that_are_grow() -> None:
    speculation, guess = Speculation(), Guess([1] * 8, 3)
    for rows in (1, 2, 4, 8):
        speculation.took(rows, 1 + 0.2 * (rows - 1))
    assert speculation.worth(guess) is not None
    for _ in range(20):
        speculation.verified(guess, 0)
    assert speculation.worth(guess) is None
    for _ in range(40):
        speculation.verified(guess, 8)
    longest = speculation.worth(guess)
    assert longest is not None
    assert len(longest.tokens) == 8


def test_where_a_row_costs_as_much_as_a_run_nothing_is_guessed() -> None:
    speculation, guess = Speculation(), Guess([1] * 8, 6)
    for rows in (1, 2, 4, 8):
        speculation.took(rows, float(rows))
    assert speculation.worth(guess) is None
