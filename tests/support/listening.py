"""A chat runtime that answers from a script and notes what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence

from onhand.decoding.token_chat import TokenChat
from onhand.options import GenerationOptions
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.testing import Step
from onhand.types import Event, Message, ToolOffer
from support.scripted import byte_tokenizer, scripted
from support.tiny import CHATML


class Listening:
    """asked: the messages of each question."""

    def __init__(self, script: Iterable[Step], context_tokens: int = 4096) -> None:
        self.completion = scripted(script, context_tokens=context_tokens)
        encoder = PromptEncoder(ChatTemplate(CHATML), byte_tokenizer())
        self._inner = TokenChat(self.completion.engine, encoder)
        self.asked: list[list[Message]] = []

    def stream(
        self,
        messages: Sequence[Message],
        options: GenerationOptions,
        cancel: threading.Event | None = None,
        tools: ToolOffer | None = None,
    ) -> Generator[Event, None, None]:
        self.asked.append(list(messages))
        yield from self._inner.stream(messages, options, cancel, tools)

    @property
    def context_tokens(self) -> int:
        return self._inner.context_tokens

    def count(self, messages: Sequence[Message], tools: ToolOffer | None = None) -> int:
        return self._inner.count(messages, tools)

    def close(self) -> None:
        self._inner.close()
