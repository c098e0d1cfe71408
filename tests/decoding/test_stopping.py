from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onhand.decoding.stopping import StopMatcher


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], str | None]:
    """What is shown after each piece and at the end, and the stop that matched."""
    matcher = StopMatcher(stops)
    shown = [matcher.feed(piece) for piece in pieces]
    return [*shown, matcher.finish()], matcher.matched


def cut_by_hand(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """The definition: the first place where a stop ends, and of the stops that end there the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def every_chunking(text: str) -> Iterator[list[str]]:
    for count in range(len(text)):
        for cuts in combinations(range(1, len(text)), count):
            edges = [0, *cuts, len(text)]
            yield [text[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(st.text("aab\U0001f600", min_size=1, max_size=4), max_size=5), st.text("aab\U0001f600", max_size=8))
def test_every_chunking_shows_the_text_before_the_first_stop(stops: list[str], text: str) -> None:
    expected = cut_by_hand(stops, text)
    for pieces in every_chunking(text):
        shown, matched = run(stops, pieces)
        assert ("".join(shown), matched) == expected


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4), st.lists(st.text("abc", max_size=4)))
def test_only_a_proper_prefix_of_a_stop_is_held_back(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    fed = shown = ""
    for piece in pieces:
        fed += piece
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            break
        held = fed[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_nothing_of_a_stop_that_comes_in_pieces_is_shown() -> None:
    assert run(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J!"]) == (["ABC", "", "", "", "", ""], "DEFGHIJ")


def test_a_beginning_that_does_not_become_a_stop_is_shown() -> None:
    assert run(["DEFGHIJ"], ["DEF", "G", "!"]) == (["", "", "DEFG!", ""], None)


def test_a_beginning_is_shown_when_the_text_ends_with_it() -> None:
    assert run(["</end>"], ["so </en"]) == (["so ", "</en"], None)


@pytest.mark.parametrize(
    ("stop", "text", "shown"),
    [
        ("aab", "aaab", "a"),
        ("stop", "don't stop!", "don't "),
        ("x", "xyz", ""),
        ("a" * 40, "b" + "a" * 41, "b"),
        ("\n\n", "one\n\ntwo", "one"),
        ("👩‍👧", "hi 👩‍👧 there", "hi "),
    ],
)
def test_a_stop_is_found_inside_tokens_and_across_them(stop: str, text: str, shown: str) -> None:
    for pieces in ([text], list(text)):
        assert "".join(run([stop], pieces)[0]) == shown


def test_text_after_a_match_is_never_shown() -> None:
    matcher = StopMatcher(["."])
    assert [matcher.feed("One. Two"), matcher.feed("Three"), matcher.finish()] == ["One", "", ""]


def test_without_stops_text_passes_at_once() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)
