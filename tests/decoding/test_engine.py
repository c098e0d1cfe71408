"""The engine, over scripted replies and over a real tiny model."""

from __future__ import annotations

import itertools
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onhand.errors import ContextOverflowError, NumericalError
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.testing import ScriptedRuntime, Step
from onhand.types import PrefillEvent, TextEvent
from onhand_cpu import CpuRuntime, backend
from support.packages import tiny_package
from support.scripted import GREEDY, byte_tokenizer, over, reply_of, said, scripted, shown
from support.tiny import TOKENS, VOCAB

PROMPT = list(b"Hello, model. ")


def row(value: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(VOCAB, value, np.float32)


def test_a_reply_ends_where_the_model_ends_it() -> None:
    reply = reply_of(scripted(said("Good day.")).stream(PROMPT, GREEDY))
    assert (reply.text, reply.finish_reason) == ("Good day.", "stop")
    assert reply.usage.completion_tokens == len("Good day.") + 1
    assert reply.usage.prompt_tokens == len(PROMPT)


def test_each_character_is_shown_as_soon_as_its_last_byte_is_there() -> None:
    """BR-06, BR-09: also where words have no spaces."""
    text = "日本語 ไทย 한국어 👩‍👩‍👧 é"
    pieces = shown(scripted(said(text)).stream(PROMPT, GREEDY))
    assert pieces == list(text)


def test_half_a_character_at_the_limit_is_shown_as_one_replacement() -> None:
    reply = reply_of(scripted(said("é")).stream(PROMPT, GenerationOptions(temperature=0, max_tokens=1)))
    assert (reply.text, reply.finish_reason) == ("\ufffd", "length")


def test_a_stop_string_that_only_the_end_completes_counts() -> None:
    options = GenerationOptions(temperature=0, max_tokens=1, stop=["\ufffd"])
    reply = reply_of(scripted(said("é")).stream(PROMPT, options))
    assert (reply.text, reply.finish_reason, reply.stop_string) == ("", "stop", "\ufffd")


def test_control_tokens_are_not_shown_but_their_text_is() -> None:
    """BR-08: a reserved token between words vanishes; the same characters, spelled out, stay."""
    unused = TOKENS.index("<|unused|>")
    script = [*said("A")[:-1], unused, *said("B <|unused|> <|im_end|>")]
    assert reply_of(scripted(script).stream(PROMPT, GREEDY)).text == "AB <|unused|> <|im_end|>"


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers_end_the_reply_and_not_the_model(
    fault: float, step: int, temperature: float
) -> None:
    """BR-30."""
    bad = row(0.0)
    bad[3 if fault > 0 or np.isnan(fault) else slice(None)] = fault
    script: list[Step] = [*said("abcdefgh")[:step], bad, *said("fine")]
    completion = scripted(script)
    with pytest.raises(NumericalError, match=f"after {step} tokens") as caught:
        reply_of(completion.stream(PROMPT, GenerationOptions(temperature=temperature, top_k=1)))
    assert caught.value.step == step
    assert reply_of(completion.stream(PROMPT, GREEDY)).text == "fine"


def test_padding_beyond_the_vocabulary_is_never_chosen() -> None:
    runtime = ScriptedRuntime([VOCAB + 2, 5], vocab_size=VOCAB + 10, end_id=VOCAB + 3)
    reply = reply_of(over(runtime).stream(PROMPT, GenerationOptions(max_tokens=20, seed=1)))
    assert reply.usage.completion_tokens > 0


@given(text=st.text("abAB", max_size=12), stops=st.lists(st.text("abAB", min_size=1, max_size=4), max_size=3))
@settings(max_examples=80, deadline=None)
def test_nothing_of_a_stop_string_is_ever_shown(text: str, stops: list[str]) -> None:
    """BR-33: the reply is the text before the stop that is complete first."""
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    expected = text[: sum(min(ends))] if ends else text
    reply = reply_of(scripted(said(text)).stream(PROMPT, GenerationOptions(temperature=0, stop=stops)))
    assert reply.text == expected
    assert (reply.stop_string is None) == (not ends)
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(("limit", "text", "finish"), [(0, "", "length"), (1, "H", "length"), (3, "Hi", "stop")])
def test_max_tokens_counts_the_reply_alone(limit: int, text: str, finish: str) -> None:
    """BR-35."""
    reply = reply_of(scripted(said("Hi")).stream(PROMPT, GenerationOptions(temperature=0, max_tokens=limit)))
    assert (reply.text, reply.finish_reason) == (text, finish)


@pytest.mark.parametrize("limit", [None, 10**9])
def test_without_a_limit_a_reply_ends_when_the_context_is_full(limit: int | None) -> None:
    completion = scripted(said("x" * 50), context_tokens=len(PROMPT) + 5)
    reply = reply_of(completion.stream(PROMPT, GenerationOptions(temperature=0, max_tokens=limit)))
    assert (reply.text, reply.finish_reason) == ("xxxxx", "length")


@pytest.mark.parametrize(("surplus", "fits"), [(-1, True), (0, False), (1, False)])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(surplus: int, fits: bool) -> None:
    """BR-35: prompts of one less than the context, of the context, and of one more."""
    completion = scripted(said("x"), context_tokens=20)
    prompt = [1] * (20 + surplus)
    if fits:
        assert reply_of(completion.stream(prompt, GREEDY)).text == "x"
        return
    with pytest.raises(ContextOverflowError) as caught:
        reply_of(completion.stream(prompt, GREEDY))
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (20 + surplus, 20)


def test_a_prompt_that_fills_the_context_can_be_read_without_a_reply() -> None:
    options = GenerationOptions(max_tokens=0)
    assert reply_of(scripted([], context_tokens=20).stream([1] * 20, options)).finish_reason == "length"


def test_a_long_prompt_is_read_in_chunks_and_says_how_far_it_is() -> None:
    events = list(scripted(said("x")).stream([1] * 20, GREEDY))
    assert events[:2] == [PrefillEvent(8, 20), PrefillEvent(16, 20)]


def test_closing_while_the_prompt_is_read_stops_the_model() -> None:
    completion = scripted(said("x"))
    with closing(completion.stream([1] * 80, GREEDY)) as events:
        assert next(events) == PrefillEvent(8, 80)
    runtime = completion.runtime
    assert isinstance(runtime, ScriptedRuntime)
    assert sum(runtime.forwarded) == 8
    assert reply_of(completion.stream([2] * 3, GREEDY)).text == "x"


def test_the_next_prompt_reuses_what_it_shares_with_the_cache() -> None:
    completion = scripted([*said("one"), *said("two")])
    reply_of(completion.stream(PROMPT, GREEDY))
    longer = [*PROMPT, *said("one"), *b"More?"]
    usage = reply_of(completion.stream(longer, GREEDY)).usage
    assert usage.cached_tokens == len(PROMPT) + len("one")
    assert reply_of(completion.stream(longer, GREEDY)).usage.cached_tokens == len(longer) - 1


@pytest.fixture(scope="module")
def tiny_runtime(tmp_path_factory: pytest.TempPathFactory) -> CpuRuntime:
    package = tiny_package(tmp_path_factory.mktemp("tiny"))
    backend.prepare(package)
    return backend.load(package, CacheOptions(), DeviceOptions(threads=1))


def test_no_seed_draws_one_that_repeats_the_reply(tiny_runtime: CpuRuntime) -> None:
    """BR-35: two replies without a seed differ; the seed that a reply reports, 0 included, repeats it."""
    completion = over(tiny_runtime)
    free = GenerationOptions(max_tokens=40, temperature=1, top_k=0, top_p=1, min_p=0)
    first, second = (reply_of(completion.stream(PROMPT, free)) for _ in range(2))
    assert first.text != second.text
    for seed in (first.seed, 0, 2**63):
        again = GenerationOptions(max_tokens=40, temperature=1, top_k=0, top_p=1, min_p=0, seed=seed)
        replies = {reply_of(completion.stream(PROMPT, again)).text for _ in range(2)}
        assert len(replies) == 1
        assert seed != first.seed or replies == {first.text}


@given(cancels=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 12)), max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_said_and_cancelled_before_a_reply_is_as_from_scratch(
    tiny_runtime: CpuRuntime, cancels: list[tuple[bytes, int]]
) -> None:
    """Warm equals cold, and a cancelled stream leaves no trace."""
    options = GenerationOptions(temperature=0, max_tokens=12)
    expected = reply_of(over(tiny_runtime).stream(PROMPT, options)).text
    completion = over(tiny_runtime)
    for prompt, steps in cancels:
        with closing(completion.stream(list(prompt), options)) as events:
            list(itertools.islice(events, steps))
    assert reply_of(completion.stream(PROMPT, options)).text == expected


def test_text_that_streams_is_the_text_that_is_returned() -> None:
    completion = scripted(said("naïve — 日本 <|im_end|>"))
    events = list(completion.stream(PROMPT, GREEDY))
    assert all(event.text for event in events if isinstance(event, TextEvent))
    assert reply_of(events).text == "naïve — 日本 <|im_end|>"
    assert byte_tokenizer().decode(said("naïve")) == "naïve"
