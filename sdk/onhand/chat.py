"""A conversation with a model."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from onhand.backends import CacheKeeper, ChatRuntime
from onhand.errors import CacheFileError
from onhand.options import GenerationOptions, checked_options, checked_text
from onhand.types import DoneEvent, Event, EvictedEvent, Message, Reply, TextEvent


class Chat:
    """A conversation: what was said, and the means to go on. Made by `Model.chat`.

    A question and its reply enter the transcript together, when the reply ends, or is cut short with something said.
    After an error, or when a reply is closed, cancelled or out of time before the first word, the conversation is as it
    was before the question.
    """

    def __init__(self, runtime: ChatRuntime, system: str | None, options: GenerationOptions) -> None:
        self._runtime = runtime
        self._messages = [Message("system", checked_text("system", system))] if system is not None else []
        self.options = options
        self._unseen: tuple[int, ...] = ()
        self._cancel = threading.Event()

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said so far, the system prompt first."""
        return tuple(self._messages)

    @property
    def unseen(self) -> tuple[int, ...]:
        """The indices in `messages` of those that the model saw nothing of in its last reply: the window slid on."""
        return self._unseen

    def stream(self, text: str, options: GenerationOptions | None = None) -> Generator[Event, None, None]:
        """Ask, and yield the reply as it comes; the last event is DoneEvent.

        Closing the generator cancels the reply within one step and keeps what was said:
        `with closing(chat.stream(text)) as events`. options: for this reply alone. Raises OptionError for text that
        cannot be encoded, TemplateError, ContextOverflowError, NumericalError, QueueFullError.
        """
        self._cancel = threading.Event()
        question = Message("user", checked_text("text", text))
        return self._reply(question, checked_options("options", options, self.options), self._cancel)

    def _reply(
        self, question: Message, options: GenerationOptions, cancel: threading.Event
    ) -> Generator[Event, None, None]:
        said: list[str] = []
        self._unseen = ()
        ended = False
        with closing(self._runtime.stream([*self._messages, question], options, cancel)) as events:
            try:
                for event in events:
                    if isinstance(event, TextEvent):
                        said.append(event.text)
                    elif isinstance(event, EvictedEvent):
                        self._unseen = event.messages
                    elif isinstance(event, DoneEvent):
                        ended = True
                        if said or event.reply.finish_reason in ("stop", "length"):
                            self._record(question, said)
                    yield event
            except (GeneratorExit, KeyboardInterrupt):
                if said and not ended:
                    self._record(question, said)
                raise

    def ask(self, text: str, options: GenerationOptions | None = None) -> Reply:
        """Ask, and wait for the whole reply: the stream, joined."""
        for event in self.stream(text, options):
            if isinstance(event, DoneEvent):
                return event.reply
        raise AssertionError("a stream ends with DoneEvent")

    def cancel(self) -> None:
        """End the reply in progress within one step, with what it has: `finish_reason` is then "cancelled".

        For any thread, also while the prompt is being read or waits for others; closing the stream is for the one who
        reads it. Does nothing when there is no reply in progress.
        """
        self._cancel.set()

    def save_cache(self, path: str | Path) -> None:
        """Write the KV cache of this conversation to a file, for `Model.load_cache`; a quarter of its size in memory.

        The file holds the tokens of what was said, in clear: keep it where the conversation is kept, and delete it with
        it. Raises CacheFileError when the model holds nothing of the conversation (any more), StorageError,
        TemplateError; then there is no new file.
        """
        if not isinstance(self._runtime, CacheKeeper):
            raise CacheFileError(path, "not held", "this model's cache cannot be saved")
        self._runtime.save_cache(self._messages, Path(path))

    def _record(self, question: Message, said: list[str]) -> None:
        self._messages += [question, Message("assistant", "".join(said))]
