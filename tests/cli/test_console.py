from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onhand.cli.console import printable


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_text_without_controls_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    shown = printable(text)
    assert all(ch in "\t\n" or not (ch < " " or "\x7f" <= ch <= "\x9f") for ch in shown)
    shown.encode("utf-8")


def test_tabs_and_lines_stay() -> None:
    assert printable("a\tb\r\nc\n") == "a\tb\nc\n"


def test_an_escape_sequence_is_shown_and_not_obeyed() -> None:
    assert printable("\x1b[31mred\x9b0m\rx") == "\ufffd[31mred\ufffd0m\ufffdx"
