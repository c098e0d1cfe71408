"""Turns a decoder into a chat, once, for every backend that gives logits."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt, Turn
from onhand.errors import TemplateError
from onhand.options import GenerationOptions
from onhand.prompts.boundaries import Encoder, turn_starts
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.replies import Shape
from onhand.types import Event, Message, ToolOffer


class TokenChat:
    """A ChatRuntime over an engine. encoder: None, with the reason, for a model that has no usable template.

    model: the sha256 of the weights, by which cache files are known.
    """

    def __init__(self, engine: Engine, encoder: PromptEncoder | None, no_template: str = "", model: str = "") -> None:
        self.engine = engine
        self.encoder = encoder
        self._no_template = no_template
        self._model = model

    def stream(
        self,
        messages: Sequence[Message],
        options: GenerationOptions,
        cancel: threading.Event | None = None,
        tools: ToolOffer | None = None,
    ) -> Generator[Event, None, None]:
        """Stream the reply to the messages. Raises TemplateError and what `Engine.stream` raises."""
        encoder = self._encoder()
        prompt = self._prompt(encoder.with_tools(tools.specs if tools else ()), messages, options)
        yield from self.engine.stream(prompt, options, cancel, self._shape(encoder, prompt, tools))

    @property
    def context_tokens(self) -> int:
        """The window: the most tokens of a conversation that the model sees at a time."""
        return self.engine.window.tokens

    def count(self, messages: Sequence[Message], tools: ToolOffer | None = None) -> int:
        """How many tokens the messages' prompt has. Raises TemplateError."""
        return len(self._encoder().with_tools(tools.specs if tools else ()).encode(messages))

    def save_cache(self, messages: Sequence[Message], path: Path, tools: ToolOffer | None = None) -> None:
        """Write what the model holds of a conversation to a file. Raises TemplateError, and as `Engine.save`."""
        answered = any(message.role == "assistant" for message in messages)
        encoder = self._encoder().with_tools(tools.specs if tools else ())
        ids = encoder.encode(messages, add_generation_prompt=False) if answered else []
        self.engine.save(ids, path, self._model)

    def load_cache(self, path: Path) -> int:
        """Hold again what was saved of a conversation, for its next turn. Raises as `Engine.load`."""
        return self.engine.load(path, self._model)

    def close(self) -> None:
        """Give back memory and threads."""
        self.engine.close()

    def _encoder(self) -> PromptEncoder:
        if self.encoder is None:
            raise TemplateError(self._no_template)
        return self.encoder

    def _shape(self, encoder: PromptEncoder, prompt: Prompt, tools: ToolOffer | None) -> Shape:
        calling = tools is not None and tools.specs and tools.choice != "none"
        return Shape(
            thought=encoder.thought,
            in_thought=encoder.thought is not None and encoder.ends_with(prompt.ids, encoder.thought[0]),
            dialect=encoder.tools.dialect if calling else None,
            offer=tools if calling else None,
        )

    def _prompt(self, encoder: Encoder, messages: Sequence[Message], options: GenerationOptions) -> Prompt:
        """The prompt; with its turns, which take some time to find, only where the window may be outgrown."""
        ids = encoder.encode(messages)
        longest = len(ids) + (math.inf if options.max_tokens is None else options.max_tokens)
        if longest <= self.engine.window.tokens or self.engine.cache.overflow == "error":
            return Prompt(ids, messages=len(messages))
        starts = turn_starts(encoder, messages, ids)
        ends = [message for _, message in starts[1:]] + [len(messages)]
        turns = [
            Turn(start, first, pinned=any(message.pinned for message in messages[first:end]))
            for (start, first), end in zip(starts, ends, strict=False)
        ]
        return Prompt(ids, tuple(turns), len(messages))
