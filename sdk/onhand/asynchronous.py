"""Streams for asyncio: a thin bridge over the same generators.

Imported when it is used: a program that does without asyncio need not wait for that to load.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from onhand.types import DoneEvent, Event, Reply


async def bridged(events: Generator[Event, None, None], cancel: threading.Event) -> AsyncGenerator[Event, None]:
    """The events of a stream, waited for in a thread of its own: the loop's shared threads stay free for others.

    The next event is asked for when the one before was taken, so the stream runs no further ahead of its reader than
    the generator does. cancel: set when this one is closed or its task cancelled; either returns within a step of the
    model, with the stream closed.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "onhand-stream")
    try:
        while (event := await loop.run_in_executor(thread, next, events, None)) is not None:
            yield event
    finally:
        cancel.set()
        closed = loop.run_in_executor(thread, events.close)
        thread.shutdown(wait=False)
        await asyncio.shield(closed)


async def last(events: AsyncGenerator[Event, None]) -> Reply:
    """The reply at a stream's end."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, DoneEvent):
                return event.reply
    raise AssertionError("a stream ends with DoneEvent")
