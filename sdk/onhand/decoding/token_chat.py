"""Turns a decoder into a chat, once, for every backend that gives logits."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from onhand.decoding.completion import Completion
from onhand.errors import TemplateError
from onhand.options import GenerationOptions
from onhand.prompts.encode import PromptEncoder
from onhand.types import Event, Message


class TokenChat:
    """A ChatRuntime over a token loop. encoder: None, with the reason, for a model that has no usable template."""

    def __init__(self, completion: Completion, encoder: PromptEncoder | None, no_template: str = "") -> None:
        self.completion = completion
        self.encoder = encoder
        self._no_template = no_template

    def stream(self, messages: Sequence[Message], options: GenerationOptions) -> Generator[Event, None, None]:
        """Stream the reply to the messages. Raises TemplateError and what `Completion.stream` raises."""
        if self.encoder is None:
            raise TemplateError(self._no_template)
        yield from self.completion.stream(self.encoder.encode(messages), options)

    def close(self) -> None:
        """Give back memory and threads."""
        self.completion.runtime.close()
