"""Where in a prompt each turn begins, found by encoding parts of the conversation: no template is read for it.

A turn is a user's message and what follows up to the next one. It may be taken out of the prompt whole where what is
left is the prompt of the conversation without it, so only a place that the encoding of the messages before confirms
counts as a beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

from onhand.errors import TemplateError
from onhand.types import Message


class Encoder(Protocol):
    """What is asked of the prompt's encoder."""

    def encode(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The prompt's ids."""


def turn_starts(encoder: Encoder, messages: Sequence[Message], ids: Sequence[int]) -> list[tuple[int, int]]:
    """(index of its first token, index of its user message) of each turn that can be told apart, in order.

    ids: the whole prompt, as the encoder gave it. Empty when there is but one turn, or the template does not tell.
    """
    users = [place for place, message in enumerate(messages) if message.role == "user"]
    found: list[tuple[int, int]] = []
    opening: list[int] = []  # what the template writes before a user's text
    for place in users[1:]:
        before = _encode(encoder, messages[:place])
        if before and list(ids[: len(before)]) == before:
            found.append((len(before), place))
            opening = opening or list(ids[len(before) : _content_start(encoder, messages[: place + 1])])
    if not found or not opening:
        return found
    # The first turn begins behind the system prompt, which no template encodes alone.
    start = _content_start(encoder, messages[: users[0] + 1]) - len(opening)
    if start >= 0 and list(ids[start : start + len(opening)]) == opening:
        found.insert(0, (start, users[0]))
    return found


def _encode(encoder: Encoder, messages: Sequence[Message]) -> list[int]:
    try:
        return encoder.encode(messages, add_generation_prompt=False)
    except TemplateError:
        return []  # a template that refuses this part of the conversation


def _content_start(encoder: Encoder, messages: Sequence[Message]) -> int:
    """Where the last message's text begins: up to where the prompt is the same whatever it says."""
    *before, last = messages
    variants = (_encode(encoder, [*before, replace(last, content=text)]) for text in ("A", "8"))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*variants, strict=False)))
