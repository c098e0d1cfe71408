"""What was said can be taken back, asked anew, forked, pinned, and kept as plain data."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from onhand.chat import Chat
from onhand.errors import ChatBusyError, NumericalError, OptionError
from onhand.transcripts import from_plain
from onhand.types import DoneEvent, Message, TextEvent
from support.listening import Listening
from support.scripted import GREEDY, reply_of, said


def talked(*more: str, system: str | None = "Be brief.") -> tuple[Chat, Listening]:
    """Two turns, A and B; `more` is what the model will say then."""
    runtime = Listening([token for text in ("A.", "B.", *more) for token in said(text)])
    chat = Chat(runtime, system, GREEDY)
    chat.ask("a?")
    chat.ask("b?")
    return chat, runtime


def contents(chat: Chat) -> list[str]:
    return [message.content for message in chat.messages]


def test_undo_takes_back_whole_turns() -> None:
    chat, _ = talked("C.")
    assert chat.undo() == (Message("user", "b?"), Message("assistant", "B."))
    assert contents(chat) == ["Be brief.", "a?", "A."]
    assert chat.undo(0) == ()
    chat.ask("c?")
    assert len(chat.undo(2)) == 4
    assert contents(chat) == ["Be brief."]


@pytest.mark.parametrize("turns", [-1, 3, True, 1.0, None])
def test_more_turns_than_there_are_cannot_be_taken_back(turns: Any) -> None:
    chat, _ = talked()
    with pytest.raises(OptionError, match="0 to 2"):
        chat.undo(turns)
    assert len(chat.messages) == 5


def test_a_regenerated_reply_takes_the_old_ones_place_and_not_before_it_ended() -> None:
    chat, runtime = talked("Better.")
    with closing(chat.regenerate()) as events:
        for event in events:
            if isinstance(event, TextEvent):
                assert contents(chat)[-1] == "B."
    assert contents(chat) == ["Be brief.", "a?", "A.", "b?", "Better."]
    assert [message.content for message in runtime.asked[-1]] == ["Be brief.", "a?", "A.", "b?"]


def test_an_edited_question_replaces_all_that_came_after() -> None:
    chat, runtime = talked("Other.")
    chat.pin(1)
    assert reply_of(chat.edit(1, "x?")).text == "Other."
    assert chat.messages[1:] == (Message("user", "x?", pinned=True), Message("assistant", "Other."))
    assert len(runtime.asked[-1]) == 2


def test_where_the_new_reply_fails_or_says_nothing_the_old_one_stays() -> None:
    runtime = Listening([*said("A."), np.full(300, np.nan, np.float32)])
    chat = Chat(runtime, None, GREEDY)
    chat.ask("a?")
    with pytest.raises(NumericalError):
        list(chat.edit(0, "x?"))
    stream = chat.regenerate()
    chat.cancel()
    list(stream)
    assert contents(chat) == ["a?", "A."]


@pytest.mark.parametrize("index", [0, 2, 5, -1, True, None])
def test_only_questions_can_be_edited(index: Any) -> None:
    chat, _ = talked()
    with pytest.raises(OptionError, match=r"one of \[1, 3\]"):
        chat.edit(index, "x?")


def test_an_empty_conversation_has_nothing_to_regenerate() -> None:
    with pytest.raises(OptionError, match="empty conversation"):
        Chat(Listening([]), "S", GREEDY).regenerate()


def test_a_fork_begins_alike_and_goes_its_own_way() -> None:
    chat, _ = talked("C.", "D.")
    whole, part = chat.fork(), chat.fork(at=3)
    whole.ask("c?")
    part.ask("d?")
    assert contents(chat) == ["Be brief.", "a?", "A.", "b?", "B."]
    assert contents(whole) == [*contents(chat), "c?", "C."]
    assert contents(part) == ["Be brief.", "a?", "A.", "d?", "D."]
    assert contents(chat.fork(at=0)) == []


@pytest.mark.parametrize("at", [2, 4, 6, -1, "3"])
def test_a_fork_in_the_middle_of_a_turn_is_refused(at: Any) -> None:
    chat, _ = talked()
    with pytest.raises(OptionError):
        chat.fork(at)


def test_pins_are_set_and_taken_away() -> None:
    chat, _ = talked()
    chat.pin(2)
    assert [message.pinned for message in chat.messages] == [False, False, True, False, False]
    chat.pin(2, False)
    assert not any(message.pinned for message in chat.messages)
    with pytest.raises(OptionError, match="0 to 4"):
        chat.pin(5)


def test_a_budget_says_what_fits_before_it_is_asked() -> None:
    chat, _ = talked("C.")
    budget = chat.budget("c?")
    assert (budget.context_tokens, budget.fits, budget.deficit_tokens) == (4096, True, 0)
    assert budget.free_tokens == 4096 - budget.prompt_tokens
    assert chat.ask("c?").usage.prompt_tokens == budget.prompt_tokens
    long = chat.budget("x" * 5000)
    assert not long.fits
    assert long.deficit_tokens == long.prompt_tokens + 1 - 4096
    assert chat.budget("x" * (5000 - long.deficit_tokens)).fits
    assert not chat.budget("x" * (5001 - long.deficit_tokens)).fits


def test_a_transcript_goes_through_json_and_on() -> None:
    chat, _ = talked()
    chat.pin(1)
    plain = json.loads(json.dumps(chat.transcript()))
    assert plain[:2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a?", "pinned": True}]
    again = Chat(Listening(said("C.")), None, GREEDY, from_plain(plain))
    assert again.messages == chat.messages
    assert again.ask("c?").text == "C."


@pytest.mark.parametrize(
    ("transcript", "problem"),
    [
        ("text", "a list of messages"),
        ({"role": "user"}, "a list of messages"),
        ([5], "transcript\\[0\\]"),
        ([{"role": "user"}], "role and content"),
        ([{"role": "user", "content": "x", "name": "y"}], "role and content"),
        ([{"role": "robot", "content": "x"}], "robot"),
        ([{"role": "user", "content": 5}], "a string"),
        ([{"role": "user", "content": "x", "thinking": 5}], "thinking .* a string"),
        ([{"role": "user", "content": "\ud800"}], "surrogates"),
        ([{"role": "user", "content": "x", "pinned": 1}], "true or false"),
        ([{"role": "assistant", "content": "x"}], "user there"),
        ([{"role": "user", "content": "x"}], "a reply to the last question"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}], "assistant there"),
    ],
)
def test_what_is_no_transcript_is_refused_with_its_place(transcript: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Chat(Listening([]), None, GREEDY, from_plain(transcript))


def test_two_system_prompts_are_refused() -> None:
    with pytest.raises(OptionError, match=r"messages\[1\] role is 'system'"):
        Chat(Listening([]), "one", GREEDY, [Message("system", "another")])


def test_a_new_question_closes_a_stream_that_was_left_open() -> None:
    chat = Chat(Listening([*said("one two three"), *said("Hi.")]), None, GREEDY)
    left = chat.stream("Count")
    while not isinstance(next(left), TextEvent):
        pass
    next(left)
    chat.ask("Hello")
    assert contents(chat)[:2] == ["Count", "on"]
    assert contents(chat)[2] == "Hello"
    assert list(left) == []


@pytest.mark.parametrize("ask", [Chat.ask, lambda chat, text: chat.edit(0, text), lambda chat, _: chat.regenerate()])
def test_while_another_thread_waits_for_a_reply_a_question_is_refused(ask: Callable[[Chat, str], object]) -> None:
    waiting, going_on = threading.Event(), threading.Event()

    class Slow(Listening):
        def stream(self, *arguments: Any) -> Any:
            if self.asked:
                waiting.set()
                assert going_on.wait(10)
            yield from super().stream(*arguments)

    chat = Chat(Slow([*said("A."), *said("B.")]), None, GREEDY)
    chat.ask("a?")
    thread = threading.Thread(target=chat.ask, args=("b?",))
    thread.start()
    assert waiting.wait(10)
    with pytest.raises(ChatBusyError, match="fork"):
        ask(chat, "c?")
    going_on.set()
    thread.join()
    assert contents(chat) == ["a?", "A.", "b?", "B."]


def test_a_stream_that_was_dropped_is_closed_at_once() -> None:
    """The conversation does not keep it alive."""
    chat = Chat(Listening(said("one two three")), None, GREEDY)
    stream = chat.stream("Count")
    while not isinstance(next(stream), TextEvent):
        pass
    del stream
    assert contents(chat) == ["Count", "o"]


def test_a_reply_that_ends_keeps_a_pin_that_was_set_meanwhile() -> None:
    chat, _ = talked("C.")
    for event in chat.stream("c?"):
        if isinstance(event, TextEvent):
            chat.pin(1)
    assert isinstance(event, DoneEvent)
    assert chat.messages[1].pinned
