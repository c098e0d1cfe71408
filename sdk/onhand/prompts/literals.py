"""Reads the values that models write: JSON, Python literals, and what Gemma makes of both; nothing is ever run.

One grammar covers them, since models mix them: keys with quotes of either kind or without, `true` or `True`, `null` or
`None`, trailing commas, raw line breaks in strings, strings between special tokens.
"""

from __future__ import annotations

import re
import sys
from typing import Any

MAX_DEPTH = 64
"""How deep values may be nested."""

STRING_TOKENS = ("<escape>", '<|"|>')
"""What begins and ends a string in the calls of FunctionGemma and of Gemma 4; nothing in between is escaped."""

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"[^\s\"'{}\[\](),:=]+")
_BARE = re.compile(r"[^{}\[\](),\"']*[^{}\[\](),\"'\s]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_STRINGS = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", re.DOTALL) for quote in "\"'"}
_TRIPLE = re.compile(r"\"\"\"((?:[^\\]|\\.)*?)\"\"\"|'''((?:[^\\]|\\.)*?)'''", re.DOTALL)

_ESCAPE = re.compile(r"\\(?:u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|x(?P<x>[0-9a-fA-F]{2})|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_ESCAPED |= {char: char for char in "\"'/\\"}


class LiteralError(ValueError):
    """There is no value there."""


class UnfinishedError(LiteralError):
    """There is the beginning of a value, and then the text ends."""


def read_value(text: str, start: int = 0) -> tuple[Any, int]:
    """The value that begins at `start`, behind white space, and where it ends.

    Objects are dicts; arrays and tuples are lists. Raises UnfinishedError for one that goes on behind the end of the
    text, LiteralError for none.
    """
    return _Reader(text).value(start, 0)


def read_arguments(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The keyword arguments of a Python call, from behind its opening parenthesis to behind its closing one."""
    return _Reader(text).entries(start, ")", "=", 1)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise LiteralError(f"values are nested more than {MAX_DEPTH} deep")
        at = self._skip(at)
        first = self._text[at]
        if first == "{":
            return self.entries(at + 1, "}", ":", depth + 1)
        if first in "[(":
            return self._items(at + 1, _CLOSING[first], depth + 1)
        found = self._string(at)
        return found if found is not None else self._word(at)

    def entries(self, at: int, closing: str, colon: str, depth: int) -> tuple[dict[str, Any], int]:
        """Keys and values up to the closing bracket."""
        entries: dict[str, Any] = {}
        while self._text[at := self._skip(at)] != closing:
            key, at = self._string(at) or self._key(at)
            at = self._expect(at, colon)
            entries[str(key)], at = self.value(at, depth)
            at = self._behind_comma(at, closing)
        return entries, at + 1

    def _items(self, at: int, closing: str, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while self._text[at := self._skip(at)] != closing:
            item, at = self.value(at, depth)
            items.append(item)
            at = self._behind_comma(at, closing)
        return items, at + 1

    def _behind_comma(self, at: int, closing: str) -> int:
        at = self._skip(at)
        return at if self._text[at] == closing else self._expect(at, ",")

    def _string(self, at: int) -> tuple[str, int] | None:
        text = self._text
        for token in STRING_TOKENS:
            if text.startswith(token, at):
                end = text.find(token, at + len(token))
                if end < 0:
                    raise UnfinishedError("a string has no end")
                return text[at + len(token) : end], end + len(token)
            if token.startswith(text[at:]):
                raise UnfinishedError("a string may begin")
        if text[at] not in _STRINGS:
            return None
        pattern = _TRIPLE if text.startswith(text[at] * 3, at) else _STRINGS[text[at]]
        found = pattern.match(text, at)
        if found is None:
            raise UnfinishedError("a string has no end")
        return _unescaped(found[found.lastindex or 1]), found.end()

    def _key(self, at: int) -> tuple[str, int]:
        found = _KEY.match(self._text, at)
        if found is None:
            raise LiteralError(f"no key at {at}")
        return found[0], found.end()

    def _word(self, at: int) -> tuple[Any, int]:
        """A number, a constant, or what stands there up to the next comma or bracket: a string without quotes."""
        found = _BARE.match(self._text, at)
        if found is None:
            raise LiteralError(f"no value at {at}")
        if found.end() == len(self._text):
            raise UnfinishedError("it may go on")
        word = found[0]
        if word in _WORDS:
            return _WORDS[word], found.end()
        if not _NUMBER.fullmatch(word):
            return word, found.end()
        return (int(word) if word.lstrip("+-").isdigit() else float(word)), found.end()

    def _expect(self, at: int, char: str) -> int:
        at = self._skip(at)
        if self._text[at] != char:
            raise LiteralError(f"{self._text[at]!r} at {at} in place of {char!r}")
        return at + 1

    def _skip(self, at: int) -> int:
        """Behind white space, where there must be something."""
        found = _SPACE.match(self._text, at)
        assert found is not None
        if found.end() == len(self._text):
            raise UnfinishedError("the text ends")
        return found.end()


def _unescaped(inner: str) -> str:
    """A quoted string as JSON and Python mean it; an escape that neither knows stands as it is."""
    if "\\" not in inner:
        return inner
    text = _ESCAPE.sub(_meant, inner)
    # JSON writes what lies beyond 16 bits as two halves.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _meant(escape: re.Match[str]) -> str:
    code = escape["u"] or escape["U"] or escape["x"]
    if code is not None:
        return chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else escape[0]
    return _ESCAPED.get(escape[0][1], escape[0])
