"""Keeps what people wrote from being read as control tokens."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onhand.errors import TemplateError
from onhand.types import Message, ToolSpec

_BORDER = "\0"

# Noncharacters first (no text may hold them in interchange), then the private use areas.
_MARKERS = (range(0xFDD0, 0xFDF0), range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class TextSet:
    """Many texts to look for at once. Python's `re` would try thousands of alternatives one by one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._texts:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]" if lengths else r"(?!)")

    def starts(self, text: str) -> Iterator[tuple[int, str]]:
        """Every place where one of the texts begins, overlaps included, and the longest that does."""
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths[match[0]]:
                if text[start : start + length] in self._texts:
                    yield start, text[start : start + length]
                    break

    def cut(self, text: str) -> Iterator[tuple[str, str]]:
        """(what stands before, one of the texts), from left to right, the longest first; at last (the rest, "")."""
        end = 0
        for start, found in self.starts(text):
            if start >= end:
                yield text[end:start], found
                end = start + len(found)
        yield text[end:], ""


class Guard:
    """Writes a marker into a content wherever it could become, or become part of, one of the control texts.

    texts: the control texts, each of at least two characters. cuts: texts at which a template may take the content
    apart; what it puts together again must not form a control text either.
    """

    def __init__(self, texts: Collection[str], cuts: Collection[str] = ()) -> None:
        self._texts = TextSet(texts)
        self._listed = _BORDER + _BORDER.join(text.strip() for text in texts) + _BORDER
        self._firsts = {text.strip()[0] for text in texts}
        self._lasts = {text.strip()[-1] for text in texts}
        self._longest = max(map(len, texts), default=0)
        self._cuts = TextSet(cuts)

    def __call__(self, content: str, marker: str) -> str:
        """The content with markers. Without them it is as it was."""
        pieces, end = [], 0
        for start, _ in self._texts.starts(content):
            pieces.append(content[end : start + 1])
            end = start + 1
        broken = marker.join([*pieces, content[end:]])
        return "".join(self._fenced(part, marker) + cut for part, cut in self._cuts.cut(broken))

    def _fenced(self, text: str, marker: str) -> str:
        """The marker at the ends too, inside the white space that templates trim, where the template could go on.

        A template that writes "<" before a content "|im_end|>" would make a control text of the two.
        """
        core = text.strip()
        if not core:
            return text
        within = len(core) < self._longest and core in self._listed
        reach = range(1, min(self._longest, len(core) + 1))
        heads = (core[:length] for length in reach if core[length - 1] in self._lasts)
        tails = (core[-length:] for length in reach if core[-length] in self._firsts)
        before = within or any(head + _BORDER in self._listed for head in heads)
        after = within or any(_BORDER + tail in self._listed for tail in tails)
        start = text.index(core)
        fenced = marker * before + core + marker * after
        return text[:start] + fenced + text[start + len(core) :]


def map_texts(change: Callable[[str], str], value: Any) -> Any:
    """Plain data with every text in it changed, the keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(change, key): map_texts(change, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(change, one) for one in value]
    return value


def map_message(change: Callable[[str], str], message: Message) -> Message:
    """A message with every text in it changed, those of its calls included."""
    calls = tuple(
        replace(call, name=change(call.name), arguments=map_texts(change, call.arguments), id=change(call.id))
        for call in message.tool_calls
    )
    return replace(
        message,
        content=change(message.content),
        thinking=change(message.thinking),
        tool_calls=calls,
        tool_name=change(message.tool_name),
        tool_call_id=change(message.tool_call_id),
    )


def map_spec(change: Callable[[str], str], spec: ToolSpec) -> ToolSpec:
    """A tool with every text in it changed."""
    return ToolSpec(change(spec.name), change(spec.description), map_texts(change, spec.parameters))


def unused_character(messages: Sequence[Message], specs: Sequence[ToolSpec] = ()) -> str:
    """A character that stands in none of these texts, nor does its JSON escape."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    for message in messages:
        map_message(collect, message)
    for spec in specs:
        map_spec(collect, spec)
    used = "".join(texts)
    for code in (code for codes in _MARKERS for code in codes):
        if chr(code) not in used and escape(chr(code)) not in used:
            return chr(code)
    raise TemplateError("the messages use every private character of Unicode, so none is left to mark them with")


def escape(marker: str) -> str:
    """The marker as JSON for ASCII writes it."""
    units = marker.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
