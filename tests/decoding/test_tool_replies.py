"""Replies that call tools, through the engine: the same however they are cut, and never a call that was not whole."""

from __future__ import annotations

import pytest

from onhand.decoding.engine import Engine
from onhand.decoding.token_chat import TokenChat
from onhand.options import GenerationOptions
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.testing import ScriptedRuntime
from onhand.types import DoneEvent, Event, Message, Reply, TextEvent, ToolCallEvent, ToolOffer, ToolSpec
from support.scripted import GREEDY, byte_tokenizer, said
from support.tiny import CHATML, END, VOCAB

WEATHER = ToolSpec("get_weather", "Tells the weather.", {"properties": {"city": {"type": "string"}}})
OFFER = ToolOffer((WEATHER,))
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ASKED = [Message("user", "Is it warm?")]


def stream(text: str, options: GenerationOptions = GREEDY, offer: ToolOffer | None = OFFER) -> list[Event]:
    runtime = ScriptedRuntime(said(text), vocab_size=VOCAB, end_id=END, context_tokens=4096)
    chat = TokenChat(Engine(runtime, byte_tokenizer()), PromptEncoder(ChatTemplate(CHATML), byte_tokenizer()))
    return list(chat.stream(ASKED, options, tools=offer))


def reply(events: list[Event]) -> Reply:
    assert isinstance(events[-1], DoneEvent)
    return events[-1].reply


def test_a_reply_that_calls_says_so() -> None:
    events = stream(f"I look.\n{CALL}")
    done = reply(events)
    calls = [event.call for event in events if isinstance(event, ToolCallEvent)]
    assert [(call.name, dict(call.arguments)) for call in calls] == [("get_weather", {"city": "Oslo"})]
    assert (done.text, done.finish_reason, done.tool_calls) == ("I look.", "tool_calls", tuple(calls))


def test_max_tokens_at_every_place() -> None:
    """BR-41: cut short it is "length" and no call; what was shown is what the reply holds."""
    text = f"I look.\n{CALL}\nDone."
    for most in range(1, len(text) + 1):
        events = stream(text, GenerationOptions(temperature=0, max_tokens=most))
        done = reply(events)
        assert done.text == "".join(event.text for event in events if isinstance(event, TextEvent))
        whole = CALL in text[:most]
        assert len(done.tool_calls) == whole
        assert done.finish_reason == "length"
        assert bool(done.problem) == ("<tool_call>" in text[:most] and not whole)


@pytest.mark.parametrize("offer", [None, ToolOffer(), ToolOffer((WEATHER,), "none")])
def test_where_nothing_may_be_called_all_is_text(offer: ToolOffer | None) -> None:
    done = reply(stream(CALL, offer=offer))
    assert (done.text, done.finish_reason, done.tool_calls) == (CALL, "stop", ())


def test_stop_strings_end_what_is_said_and_not_what_is_called() -> None:
    done = reply(stream(f"{CALL}Oslo it is", GenerationOptions(temperature=0, stop=("Oslo",))))
    assert (len(done.tool_calls), done.text, done.stop_string) == (1, "", "Oslo")
