"""Messages to token ids: the template's own tokens as ids, whatever people wrote as text.

A text in a message that looks like a control token (`<|im_start|>`) is broken before rendering by a marker, a
character that stands in no message. The rendered text is cut at the control texts that are still whole, which only
the template can have written; the pieces between lose the marker and are encoded as plain text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from onhand.prompts.adapter import MessageAdapter, Policy
from onhand.prompts.boundaries import Encoder
from onhand.prompts.guard import Guard, TextSet, escape, map_message, map_spec, unused_character
from onhand.prompts.replies import THOUGHTS
from onhand.prompts.template import ChatTemplate
from onhand.prompts.tool_prompts import ToolAdapter
from onhand.types import Message, ToolSpec

THINKING = ("<think>", "</think>")
"""The tokens that an assistant's turn keeps: its own, from an earlier reply. Templates cut that turn at them."""


class PromptTokenizer(Protocol):
    """What encoding a prompt takes of a tokenizer."""

    @property
    def scaffold_tokens(self) -> Mapping[str, int]:
        """Text to id of every control token, and of each user-defined token whose text stands in the template."""

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the model has one."""

    @property
    def add_bos(self) -> bool:
        """Whether the model expects that token before every prompt."""

    def encode(self, text: str) -> list[int]:
        """The ids of plain text that begins the prompt or follows a control token.

        What looks like a control token stays text, and no BOS is put before it.
        """


class PromptEncoder:
    """Encodes conversations for one model. Any number of threads may share one.

    assistant_texts: tokens that stay tokens in assistant turns, and at which templates take those turns apart.
    Raises TemplateLimitError when the template exceeds its limits even for a short conversation.
    """

    def __init__(
        self, template: ChatTemplate, tokenizer: PromptTokenizer, *, assistant_texts: Collection[str] = THINKING
    ) -> None:
        self._adapter = MessageAdapter(template)
        self._tools: ToolAdapter | None = None
        self._tokenizer = tokenizer
        # White space and single characters are as good as text: nothing can break them, and nothing needs to.
        self._ids = {text: id_ for text, id_ in tokenizer.scaffold_tokens.items() if len(text.strip()) > 1}
        self._scaffold = TextSet(self._ids)
        self._guard = Guard(self._ids.keys())
        self._assistant_guard = Guard(self._ids.keys() - set(assistant_texts), cuts=assistant_texts)
        self.thought = next((pair for pair in THOUGHTS if pair[1] in template.source), None)
        """What begins and ends a thought of this model; None for one that does not think."""

    @property
    def policy(self) -> Policy:
        """What is done to messages that the template does not take as they are."""
        return self._adapter.policy

    @property
    def tools(self) -> ToolAdapter:
        """How the template is told of tools."""
        if self._tools is None:
            self._tools = ToolAdapter(self._adapter)
        return self._tools

    def with_tools(self, specs: Sequence[ToolSpec]) -> Encoder:
        """What encodes conversations in which these tools can be called."""
        return _WithTools(self, specs) if specs else self

    def encode(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, *, specs: Sequence[ToolSpec] = ()
    ) -> list[int]:
        """The prompt's ids, with exactly one BOS at the start where the model expects one.

        add_generation_prompt: end with what opens the assistant's turn. specs: the tools that it may call.
        Raises TemplateError when the template refuses the messages or drops one, TemplateLimitError.
        """
        marker = unused_character(messages, specs)
        guarded = [map_message(partial(self._guard_of(message), marker=marker), message) for message in messages]
        called = any(message.tool_calls for message in messages)
        if specs or called:
            shown = [map_spec(partial(self._guard, marker=marker), spec) for spec in specs]
            rendered = self.tools.render(guarded, shown, add_generation_prompt)
        else:
            rendered = self._adapter.render(guarded, add_generation_prompt)
        return self._with_one_bos(list(self._ids_of(rendered, marker)))

    def ends_with(self, ids: Sequence[int], text: str) -> bool:
        """Whether a prompt ends with a text that the template wrote, white space apart."""
        token = self._ids.get(text.strip())
        tail = [token] if token is not None else self._tokenizer.encode(text.strip())
        spaces = (self._tokenizer.encode(space) for space in ("", "\n", "\n\n"))
        return any(list(ids[-len(ending) :]) == ending for ending in ([*tail, *space] for space in spaces))

    def _guard_of(self, message: Message) -> Guard:
        return self._assistant_guard if message.role == "assistant" else self._guard

    def _ids_of(self, rendered: str, marker: str) -> Iterator[int]:
        for piece, scaffold in self._scaffold.cut(rendered):
            text = piece.replace(marker, "").replace(escape(marker), "")
            if text:
                yield from self._tokenizer.encode(text)
            if scaffold:
                yield self._ids[scaffold]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_id
        if bos is None or not self._tokenizer.add_bos:
            return ids
        written = next((index for index, id_ in enumerate(ids) if id_ != bos), len(ids))
        return [bos, *ids[written:]]


@dataclass(frozen=True, slots=True)
class _WithTools:
    encoder: PromptEncoder
    specs: Sequence[ToolSpec]

    def encode(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        return self.encoder.encode(messages, add_generation_prompt, specs=self.specs)
