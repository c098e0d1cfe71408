"""asyncio's streams are the others' twins: the same events, errors and transcripts, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onhand
from onhand.backends import Batch, Logits
from onhand.chat import Chat
from onhand.decoding.engine import Engine
from onhand.decoding.token_chat import TokenChat
from onhand.errors import ContextOverflowError, NumericalError, OnhandError
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.testing import ScriptedRuntime
from onhand.types import DoneEvent, Event, PrefillEvent, TextEvent
from support.listening import Listening
from support.scripted import GREEDY, byte_tokenizer, reply_of, said
from support.tiny import CHATML, END, VOCAB, write_tiny


def events_of(chat: Chat, text: str, stop: Callable[[Event], bool], options: onhand.GenerationOptions) -> list[Event]:
    found = []
    with closing(chat.stream(text, options)) as events:
        for event in events:
            found.append(event)
            if stop(event):
                break
    return found


def async_events_of(
    chat: Chat, text: str, stop: Callable[[Event], bool], options: onhand.GenerationOptions
) -> list[Event]:
    async def collect() -> list[Event]:
        found = []
        async with aclosing(chat.astream(text, options)) as events:
            async for event in events:
                found.append(event)
                if stop(event):
                    break
        return found

    return asyncio.run(collect())


def timeless(events: list[Event]) -> list[Event]:
    def without(event: Event) -> Event:
        if not isinstance(event, DoneEvent):
            return event
        usage = replace(event.reply.usage, prefill_seconds=0, decode_seconds=0)
        return DoneEvent(replace(event.reply, usage=usage, seed=0))

    return [without(event) for event in events]


BAD = np.full(300, np.nan, np.float32)


@pytest.mark.parametrize(
    "stop",
    [lambda _: False, lambda e: isinstance(e, PrefillEvent), lambda e: isinstance(e, TextEvent) and e.text == "c"],
    ids=["to the end", "closed while the prompt is read", "closed at a word"],
)
@pytest.mark.parametrize("script", [said("abcdef"), [*said("abcd")[:4], BAD], said("")], ids=["text", "error", "empty"])
@pytest.mark.parametrize(
    "options",
    [GREEDY, replace(GREEDY, max_tokens=2), replace(GREEDY, stop=("de",)), replace(GREEDY, deadline_seconds=0)],
    ids=["plain", "length", "stop string", "deadline"],
)
@pytest.mark.parametrize("text", ["Hello, how are you?", "x" * 5000], ids=["short", "too long"])
def test_both_give_the_same_events_errors_and_transcript(
    stop: Callable[[Event], bool], script: list[Any], options: onhand.GenerationOptions, text: str
) -> None:
    outcomes = []
    for collect in (events_of, async_events_of):
        chat = Chat(Listening(script), "Be brief.", options)
        try:
            found: object = timeless(collect(chat, text, stop, options))
        except OnhandError as error:
            found = type(error), str(error)
        outcomes.append((found, chat.messages, chat.unseen))
    assert outcomes[0] == outcomes[1]


class Slow(ScriptedRuntime):
    """Each run of the model takes a while, in which Python is free."""

    def forward(self, batch: Batch) -> Logits:
        time.sleep(0.02)
        return super().forward(batch)


def slow_chats(count: int, slots: int) -> tuple[list[Chat], Engine]:
    runtime = Slow([97] * 10**5, vocab_size=VOCAB, end_id=END, context_tokens=4096, slots=slots)
    engine = Engine(runtime, byte_tokenizer())
    token_chat = TokenChat(engine, PromptEncoder(ChatTemplate(CHATML), byte_tokenizer()))
    return [Chat(token_chat, None, GREEDY) for _ in range(count)], engine


def test_the_loop_goes_on_while_the_model_runs() -> None:
    """20 replies on 2 slots, more than the loop's own threads; those stay free."""
    chats, _ = slow_chats(20, slots=2)
    brief = replace(GREEDY, max_tokens=3)

    async def main() -> tuple[int, list[onhand.Reply]]:
        replies = asyncio.gather(*(chat.aask("Hello", brief) for chat in chats))
        ticks = 0
        while not replies.done():
            await asyncio.to_thread(int)
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks, await replies

    ticks, replies = asyncio.run(main())
    assert [reply.text for reply in replies] == ["aaa"] * 20
    assert ticks > 50


async def _timed_out(chat: Chat) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await chat.aask("Hello", replace(GREEDY, max_tokens=None))


async def _cancelled(chat: Chat) -> None:
    task = asyncio.create_task(chat.aask("Hello", replace(GREEDY, max_tokens=None)))
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _closed(chat: Chat) -> None:
    async for event in (events := chat.astream("Hello", replace(GREEDY, max_tokens=None))):
        if isinstance(event, TextEvent):
            break
    await events.aclose()


@pytest.mark.parametrize("leave", [_timed_out, _cancelled, _closed])
def test_whoever_stops_waiting_cancels_the_reply_and_keeps_what_was_said(
    leave: Callable[[Chat], Coroutine[Any, Any, None]],
) -> None:
    (chat,), engine = slow_chats(1, slots=1)

    async def main() -> None:
        await leave(chat)
        assert engine._sequences == []
        assert 0 < len(chat.messages[-1].content) < 20
        assert (await chat.aask("Again", replace(GREEDY, max_tokens=2))).text == "aa"

    asyncio.run(main())
    assert len(chat.messages) == 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("onhand-stream") and _busy(thread)]


def _busy(thread: threading.Thread) -> bool:
    thread.join(1)
    return thread.is_alive()


def test_cancel_ends_an_asynchronous_reply_with_what_it_has() -> None:
    (chat,), _ = slow_chats(1, slots=1)

    async def main() -> onhand.Reply:
        reply = asyncio.create_task(chat.aask("Hello", replace(GREEDY, max_tokens=None)))
        await asyncio.sleep(0.15)
        chat.cancel()
        return await reply

    reply = asyncio.run(main())
    assert reply.finish_reason == "cancelled"
    assert chat.messages[-1].content == reply.text


def test_a_plain_text_is_continued_asynchronously(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    brief = replace(GREEDY, max_tokens=5)
    with onhand.open(write_tiny(tmp_path / "tiny.gguf")) as model:

        async def main() -> list[Event]:
            return [event async for event in model.acomplete("Once", brief)]

        assert reply_of(asyncio.run(main())).text == reply_of(model.complete("Once", brief)).text


@pytest.mark.parametrize(("text", "error"), [("x" * 5000, ContextOverflowError), ("", NumericalError)])
def test_errors_are_those_of_the_others(text: str, error: type[OnhandError]) -> None:
    chat = Chat(Listening([BAD]), None, replace(GREEDY, max_tokens=3))
    with pytest.raises(error):
        asyncio.run(chat.aask(text))
    assert chat.messages == ()
