"""Shows a reply while it comes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from types import FrameType
from typing import Self

from onhand.cli.console import note, progress_bars, say
from onhand.types import DoneEvent, Event, PrefillEvent, Reply, TextEvent, ThinkingEvent

STUCK_SECONDS = 3.0


class InterruptNotes:
    """While entered, Ctrl-C is noted and not raised, so that it cannot hit a decoder in the middle of a step.

    It is raised after all when one noted STUCK_SECONDS ago has had no effect.
    """

    def __init__(self) -> None:
        self.noted = False
        self._first = 0.0

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.noted and now - self._first > STUCK_SECONDS:
            raise KeyboardInterrupt
        if not self.noted:
            self.noted, self._first = True, now


def show_reply(stream: Generator[Event, None, None], stop: Callable[[], bool] = lambda: False) -> None:
    """Write a reply to stdout piece by piece until it ends or `stop` says so; the stream is closed either way."""
    with ExitStack() as bars, closing(stream) as events:
        progress = bars.enter_context(progress_bars())
        thinking = False
        for event in events:
            match event:
                case PrefillEvent() if progress is not None:
                    progress("reading", event.done_tokens, event.total_tokens)
                case ThinkingEvent() if not thinking:
                    thinking = True
                    bars.close()
                    note("(thinking)")
                case TextEvent():
                    bars.close()  # a bar and the reply would write over each other
                    say(event.text, end="")
                case DoneEvent():
                    bars.close()
                    _end(event)
            if stop():
                bars.close()
                say("")
                return


def joined(stream: Iterable[Event]) -> Reply:
    """Wait for a whole reply."""
    *_, last = stream
    assert isinstance(last, DoneEvent)  # a stream that was not closed ends with it
    return last.reply


def _end(event: DoneEvent) -> None:
    say("")
    if event.reply.finish_reason != "stop":
        note(f"(stopped by the limit after {event.reply.usage.completion_tokens} tokens)")
