"""Messages to token ids: the template's own tokens as ids, whatever people wrote as text.

A text in a message that looks like a control token (`<|im_start|>`) is broken before rendering by a marker, a
character that stands in no message. The rendered text is cut at the control texts that are still whole, which only
the template can have written; the pieces between lose the marker and are encoded as plain text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from onhand.prompts.adapter import MessageAdapter, Policy
from onhand.prompts.guard import Guard, TextSet, escape, unused_character
from onhand.prompts.template import ChatTemplate
from onhand.types import Message

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
        self._tokenizer = tokenizer
        # White space and single characters are as good as text: nothing can break them, and nothing needs to.
        self._ids = {text: id_ for text, id_ in tokenizer.scaffold_tokens.items() if len(text.strip()) > 1}
        self._scaffold = TextSet(self._ids)
        self._guard = Guard(self._ids.keys())
        self._assistant_guard = Guard(self._ids.keys() - set(assistant_texts), cuts=assistant_texts)

    @property
    def policy(self) -> Policy:
        """What is done to messages that the template does not take as they are."""
        return self._adapter.policy

    def encode(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The prompt's ids, with exactly one BOS at the start where the model expects one.

        add_generation_prompt: end with what opens the assistant's turn.
        Raises TemplateError when the template refuses the messages or drops one, TemplateLimitError.
        """
        marker = unused_character(messages)
        rendered = self._adapter.render([self._guarded(message, marker) for message in messages], add_generation_prompt)
        return self._with_one_bos(list(self._ids_of(rendered, marker)))

    def _guarded(self, message: Message, marker: str) -> Message:
        guard = self._assistant_guard if message.role == "assistant" else self._guard
        return Message(message.role, guard(message.content, marker))

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
