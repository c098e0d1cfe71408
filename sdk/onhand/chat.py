"""A conversation with a model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onhand.backends import CacheKeeper, ChatRuntime
from onhand.errors import CacheFileError, ChatBusyError, OptionError
from onhand.options import GenerationOptions, checked_options, checked_text
from onhand.transcripts import check_order, to_plain
from onhand.types import Budget, DoneEvent, Event, EvictedEvent, Message, Reply, TextEvent, ThinkingEvent, TypedReply

if TYPE_CHECKING:
    from onhand.returns import Returns

T = TypeVar("T")


class Chat:
    """A conversation: what was said, and the means to go on. Made by `Model.chat`.

    A question and its reply enter the transcript together, when the reply ends, or is cut short with something said.
    After an error, or when a reply is closed, cancelled or out of time before the first word, the conversation is as it
    was before the question.

    One reply at a time: asking anew closes a stream that was left open, and is refused with ChatBusyError while another
    thread waits for a reply. `fork` gives another conversation that begins alike.
    """

    def __init__(
        self, runtime: ChatRuntime, system: str | None, options: GenerationOptions, messages: Sequence[Message] = ()
    ) -> None:
        """messages: what was said before. Raises OptionError where these are not whole turns."""
        begin = [Message("system", checked_text("system", system))] if system is not None else []
        self._messages = [*begin, *messages]
        check_order(self._messages)
        self._runtime = runtime
        self.options = options
        self._unseen: tuple[int, ...] = ()
        self._cancel = threading.Event()
        self._current: weakref.ref[Generator[Event, None, None]] | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said so far, the system prompt first."""
        return tuple(self._messages)

    @property
    def unseen(self) -> tuple[int, ...]:
        """The indices in `messages` of those that the model saw nothing of in its last reply: the window slid on."""
        return self._unseen

    def stream(
        self, text: str, options: GenerationOptions | None = None, *, returns: object = None
    ) -> Generator[Event, None, None]:
        """Ask, and yield the reply as it comes; the last event is DoneEvent.

        Closing the generator cancels the reply within one step and keeps what was said:
        `with closing(chat.stream(text)) as events`. options: for this reply alone. returns: what the reply is to be: a
        type that pydantic knows, a JSON schema as a dict, or a Grammar; then there are PartialEvents, and the last
        event has a TypedReply. Raises OptionError for text that cannot be encoded, ChatBusyError, TemplateError,
        ContextOverflowError, GrammarError, NumericalError, QueueFullError.
        """
        return self._begin(Message("user", checked_text("text", text)), options, returns=returns)

    @overload
    def ask(self, text: str, options: GenerationOptions | None = None) -> Reply: ...
    @overload
    def ask(self, text: str, options: GenerationOptions | None = None, *, returns: type[T]) -> TypedReply[T]: ...
    @overload
    def ask(self, text: str, options: GenerationOptions | None = None, *, returns: object) -> TypedReply[Any]: ...
    def ask(self, text: str, options: GenerationOptions | None = None, *, returns: object = None) -> Reply:
        """Ask, and wait for the whole reply: the stream, joined."""
        return _joined(self.stream(text, options, returns=returns))

    def astream(
        self, text: str, options: GenerationOptions | None = None, *, returns: object = None
    ) -> AsyncGenerator[Event, None]:
        """`stream` for asyncio: the same events, waited for in a thread of its own, so that the loop goes on.

        Closing the generator, or cancelling who waits for it, cancels the reply.
        """
        from onhand.asynchronous import bridged

        return bridged(self.stream(text, options, returns=returns), self._cancel)

    @overload
    async def aask(self, text: str, options: GenerationOptions | None = None) -> Reply: ...
    @overload
    async def aask(self, text: str, options: GenerationOptions | None = None, *, returns: type[T]) -> TypedReply[T]: ...
    @overload
    async def aask(
        self, text: str, options: GenerationOptions | None = None, *, returns: object
    ) -> TypedReply[Any]: ...
    async def aask(self, text: str, options: GenerationOptions | None = None, *, returns: object = None) -> Reply:
        """`ask` for asyncio."""
        from onhand.asynchronous import last

        return await last(self.astream(text, options, returns=returns))

    def regenerate(
        self, options: GenerationOptions | None = None, *, returns: object = None
    ) -> Generator[Event, None, None]:
        """Ask the last question once more, as `stream` does; the new reply takes the old one's place when it ends."""
        index = self._last_question("regenerate")
        return self._begin(self._messages[index], options, index, returns)

    def edit(
        self, index: int, text: str, options: GenerationOptions | None = None, *, returns: object = None
    ) -> Generator[Event, None, None]:
        """Ask with another text in place of the question `messages[index]`, as `stream` does.

        That question, its reply and all that came after are replaced when the new reply ends; with `fork` first, both
        go on. Raises OptionError for an index at which no question stands.
        """
        before = self._question_at(index)
        return self._begin(Message("user", checked_text("text", text), pinned=before.pinned), options, index, returns)

    def undo(self, turns: int = 1) -> tuple[Message, ...]:
        """Take back the last questions with their replies; what was taken back. Raises OptionError."""
        questions = [index for index, message in enumerate(self._messages) if message.role == "user"]
        if type(turns) is not int or not 0 <= turns <= len(questions):
            raise OptionError("turns", turns, f"0 to {len(questions)}, the questions that were asked")
        start = questions[-turns] if turns else len(self._messages)
        taken = tuple(self._messages[start:])
        del self._messages[start:]
        self._unseen = tuple(index for index in self._unseen if index < start)
        return taken

    def fork(self, at: int | None = None) -> Chat:
        """Another conversation that begins with `messages[:at]`, whole turns; the model reads nothing of it again.

        None: all of it. Raises OptionError for an index in the middle of a turn.
        """
        end = len(self._messages) if at is None else at
        if type(end) is not int or not 0 <= end <= len(self._messages):
            raise OptionError("at", at, f"0 to {len(self._messages)}, how many messages to keep")
        return Chat(self._runtime, None, self.options, self._messages[:end])

    def pin(self, index: int, pinned: bool = True) -> None:
        """Keep the turn of `messages[index]` in the model's sight when the window slides. Raises OptionError."""
        if type(index) is not int or not 0 <= index < len(self._messages):
            raise OptionError("index", index, f"0 to {len(self._messages) - 1}, a place in messages")
        message = self._messages[index]
        self._messages[index] = replace(message, pinned=pinned)

    def budget(self, text: str = "") -> Budget:
        """How much of the window a question takes with all that was said before. Raises TemplateError."""
        asked = [*self._messages, Message("user", checked_text("text", text))]
        return Budget(prompt_tokens=self._runtime.count(asked), context_tokens=self._runtime.context_tokens)

    def transcript(self) -> list[dict[str, Any]]:
        """What was said as plain data, for json: `role` and `content` of each message, `thinking` and `pinned` if any.

        `Model.chat(transcript=...)` goes on with it.
        """
        return to_plain(self._messages)

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

    def _begin(
        self,
        question: Message,
        options: GenerationOptions | None,
        index: int | None = None,
        returns: object = None,
    ) -> Generator[Event, None, None]:
        """index: the question whose turn, with all that follows it, is replaced; None for one more turn."""
        chosen = checked_options("options", options, self.options)
        wanted = None
        if returns is not None:
            from onhand.returns import Returns

            wanted = Returns.of(returns)
            if chosen.grammar is not None:
                raise OptionError("options.grammar", chosen.grammar, "None where the reply has a type (returns=)")
            chosen = replace(chosen, grammar=wanted.grammar)
        left_open = self._current() if self._current else None
        if left_open is not None:
            try:
                left_open.close()
            except ValueError as error:  # it is being executed
                raise ChatBusyError from error
        self._cancel = threading.Event()
        stream = self._reply(question, chosen, self._cancel, index, wanted)
        self._current = weakref.ref(stream)
        return stream

    def _reply(
        self,
        question: Message,
        options: GenerationOptions,
        cancel: threading.Event,
        index: int | None,
        wanted: Returns[Any] | None,
    ) -> Generator[Event, None, None]:
        said: list[str] = []
        thought: list[str] = []
        self._unseen = ()
        ended = False
        told = f"{question.content}\n\n{wanted.description}" if wanted and wanted.description else question.content
        asked = [*self._messages[:index], replace(question, content=told)]
        events = self._runtime.stream(asked, options, cancel)

        def record() -> None:
            self._messages[len(self._messages) if index is None else index :] = [
                question,
                Message("assistant", "".join(said), thinking="".join(thought)),
            ]

        with closing(wanted.typed(events) if wanted else events) as events:
            try:
                for event in events:
                    if isinstance(event, TextEvent):
                        said.append(event.text)
                    elif isinstance(event, ThinkingEvent):
                        thought.append(event.text)
                    elif isinstance(event, EvictedEvent):
                        self._unseen = event.messages
                    elif isinstance(event, DoneEvent):
                        ended = True
                        if said or event.reply.finish_reason in ("stop", "length"):
                            record()
                    yield event
            except (GeneratorExit, KeyboardInterrupt):
                if said and not ended:
                    record()
                raise

    def _question_at(self, index: int) -> Message:
        if type(index) is int and 0 <= index < len(self._messages) and self._messages[index].role == "user":
            return self._messages[index]
        questions = [place for place, message in enumerate(self._messages) if message.role == "user"]
        raise OptionError("index", index, f"the place of a question: one of {questions}")

    def _last_question(self, doing: str) -> int:
        for index in reversed(range(len(self._messages))):
            if self._messages[index].role == "user":
                return index
        raise OptionError(doing, "an empty conversation", "one with a question in it")


def _joined(events: Generator[Event, None, None]) -> Reply:
    for event in events:
        if isinstance(event, DoneEvent):
            return event.reply
    raise AssertionError("a stream ends with DoneEvent")
