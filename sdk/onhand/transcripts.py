"""Conversations as plain data, and back: what a program keeps in a file or a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from onhand.errors import OptionError
from onhand.options import checked_text
from onhand.types import Message, Role

NEEDED = {"role", "content"}


def to_plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """`role` and `content` of each message, `thinking` and `pinned` if any: what json can write."""
    return [
        {"role": message.role, "content": message.content}
        | ({"thinking": message.thinking} if message.thinking else {})
        | ({"pinned": True} if message.pinned else {})
        for message in messages
    ]


def from_plain(transcript: Sequence[Mapping[str, Any]]) -> list[Message]:
    """What `to_plain` gave. Raises OptionError with the place of what it cannot have given."""
    if isinstance(transcript, str | bytes) or not isinstance(transcript, Sequence):
        raise OptionError("transcript", type(transcript).__name__, "a list of messages, each a dict")
    return [_message(f"transcript[{index}]", entry) for index, entry in enumerate(transcript)]


def _message(place: str, entry: Mapping[str, Any]) -> Message:
    if not isinstance(entry, Mapping) or not NEEDED <= entry.keys() <= NEEDED | {"thinking", "pinned"}:
        raise OptionError(place, type(entry).__name__, "a dict of role and content, and of thinking and pinned if any")
    if entry["role"] not in get_args(Role):
        raise OptionError(f"{place} role", entry["role"], f"one of {', '.join(get_args(Role))}")
    pinned = entry.get("pinned", False)
    if not isinstance(pinned, bool):
        raise OptionError(f"{place} pinned", pinned, "true or false")
    content = checked_text(f"{place} content", entry["content"])
    thinking = checked_text(f"{place} thinking", entry.get("thinking", ""))
    return Message(entry["role"], content, pinned, thinking=thinking)


def check_order(messages: Sequence[Message]) -> None:
    """Raise OptionError unless these are a system prompt, or none, and whole turns: a question, then its reply."""
    turns = messages[1:] if messages and messages[0].role == "system" else messages
    offset = len(messages) - len(turns)
    for index, message in enumerate(turns):
        expected = "assistant" if index % 2 else "user"
        if message.role != expected:
            raise OptionError(f"messages[{offset + index}] role", message.role, f"{expected} there: turns are whole")
    if len(turns) % 2:
        raise OptionError("messages", f"{len(messages)} of them", "a reply to the last question, too")
