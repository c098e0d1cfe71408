"""What a window drops: whole turns, the oldest first; never the system prompt, a pinned turn or the last question."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onhand.decoding.cuts import Cuts
from onhand.decoding.window import Prompt, Turn, Window
from onhand.errors import ContextOverflowError, OptionError
from onhand.options import CacheOptions

Span = tuple[int, int]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def cut(places: list[Span]) -> Cuts:
    cuts = Cuts()
    for start, end in places:
        cuts = cuts.adding(start, end)
    return cuts


def gone(places: list[Span]) -> set[int]:
    return {index for start, end in places for index in range(start, end)}


@given(spans, st.integers(0, 70), st.integers(0, 70))
def test_cuts_are_the_set_of_what_was_cut(places: list[Span], index: int, other: int) -> None:
    cuts, holes = cut(places), gone(places)
    assert cuts.total == len(holes)
    assert cuts.place(index) == len(set(range(index)) - holes)
    assert cuts.visible(range(70)) == sorted(set(range(70)) - holes)
    assert gone(list(cuts.until(index).spans)) == {hole for hole in holes if hole < index}
    assert all(a[1] < b[0] for a, b in zip(cuts.spans, cuts.spans[1:], strict=False))
    low, high = min(index, other), max(index, other)
    assert cuts.count(low, high) == len(set(range(low, high)) - holes)
    assert cuts.end_of_cut_at(index) == next(i for i in range(index, 200) if i not in holes)
    assert cuts.start_of_cut_after(index, 999) == next((s for s, _ in cuts.spans if s > index), 999)


@given(spans, spans, st.integers(0, 70))
def test_cuts_join_and_differ_where_sets_do(a: list[Span], b: list[Span], length: int) -> None:
    joined = cut(a).union(cut(b))
    assert gone(list(joined.spans)) == gone(a) | gone(b)
    differing = (gone(a) ^ gone(b)) & set(range(length))
    first = cut(a).first_difference(cut(b), length)
    assert first <= min(differing, default=length)


def conversation(lengths: list[int], system: int, pinned: set[int]) -> Prompt:
    starts = [system + sum(lengths[:turn]) for turn in range(len(lengths))]
    turns = tuple(Turn(start, 2 * turn, turn in pinned) for turn, start in enumerate(starts))
    return Prompt([0] * (system + sum(lengths)), turns, 2 * len(lengths))


prompts = st.builds(
    conversation, st.lists(st.integers(1, 30), min_size=1, max_size=10), st.integers(0, 20), st.sets(st.integers(0, 9))
)


@given(prompts, st.integers(10, 60), st.integers(1, 9))
def test_a_prompt_fits_by_dropping_whole_turns_from_the_oldest(prompt: Prompt, tokens: int, block: int) -> None:
    window = Window(tokens, block)
    ends = [*(turn.start for turn in prompt.turns[1:]), len(prompt.ids)]
    loose = [(turn.start, end) for turn, end in zip(prompt.turns[:-1], ends, strict=False) if not turn.pinned]
    fixed = len(prompt.ids) - len(gone(loose))
    if len(prompt.ids) >= tokens and fixed >= tokens:
        with pytest.raises(ContextOverflowError, match=f"{fixed} tokens"):
            window.fit_prompt(prompt, Cuts())
        return
    cuts = window.fit_prompt(prompt, Cuts())
    assert len(prompt.ids) - cuts.total < tokens
    dropped = gone(list(cuts.spans))
    kept = [span for span in loose if not set(range(*span)) & dropped]
    assert dropped == gone([span for span in loose if span not in kept])
    assert loose[len(loose) - len(kept) :] == kept


@given(prompts, st.integers(12, 60), st.integers(1, 9), st.one_of(st.none(), st.integers(0, 20)), st.integers(1, 200))
def test_a_reply_that_goes_on_for_ever_always_gets_room(
    prompt: Prompt, tokens: int, block: int, sinks: int | None, generated: int
) -> None:
    assume((sinks or 0) + block < tokens)
    window = Window(tokens, block, sinks)
    pinned = {
        index
        for turn, following in zip(prompt.turns, prompt.turns[1:], strict=False)
        if turn.pinned
        for index in range(turn.start, following.start)
    }
    try:
        cuts = window.fit_prompt(prompt, Cuts())
    except ContextOverflowError:
        return
    length = len(prompt.ids)
    for _ in range(generated):
        if length - cuts.total == tokens:
            before = cuts
            try:
                cuts = window.make_room(prompt, length, cuts)
            except ContextOverflowError:
                assert len(pinned) + window._first_loose(prompt) >= tokens - block
                return
            assert cuts.total > before.total
            assert gone(list(before.spans)) <= gone(list(cuts.spans))
            assert not gone(list(cuts.spans)) & pinned
        length += 1
        assert length - cuts.total <= tokens


def test_the_first_tokens_stay_as_sinks() -> None:
    text = Prompt([0] * 50)
    assert Window(100, 10, 3).make_room(text, 100, Cuts()).spans == ((3, 13),)
    assert Window(1024, 128).make_room(text, 1024, Cuts()).spans == ((64, 192),)
    chat = conversation([20, 20], 30, set())
    assert Window(100, 30).make_room(chat, 100, Cuts()).spans == ((30, 60),)
    assert Window(100, 10).make_room(conversation([20], 0, set()), 100, Cuts()).spans == ((4, 14),)


@pytest.mark.parametrize(("sinks", "block", "tokens"), [(20, None, 20), (16, 4, 20), (0, 20, 20), (25, 1, 20)])
def test_a_window_that_could_not_slide_is_refused(sinks: int, block: int | None, tokens: int) -> None:
    """BR-04."""
    with pytest.raises(OptionError, match=f"{sinks} sinks in a window of {tokens}"):
        Window.of(CacheOptions(sinks=sinks, evict_tokens=block), tokens)
