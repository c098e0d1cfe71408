"""Token ids to text, one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from types import MappingProxyType

from onhand.formats.tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text from one reply's token ids, each character as soon as its last byte is there.

    All that `feed` and `finish` give, joined, is `tokenizer.decode` of all ids. Only the bytes of an unfinished
    character are held back, at most three; bytes that cannot become one are given as U+FFFD at once.
    """

    def __init__(self, tokenizer: Tokenizer, revealed: Mapping[int, str] = MappingProxyType({})) -> None:
        """revealed: hidden tokens that are given all the same, with their texts."""
        self._tokenizer = tokenizer
        self._revealed = {token: text.encode() for token, text in revealed.items()}
        self._decoder = _utf8_decoder("replace")
        self._drop_space = tokenizer.space_prefix

    def feed(self, token: int) -> str:
        """The text that this token completes, "" if none. Raises OptionError for an id that is not one."""
        return self._without_prefix(
            self._decoder.decode(self._revealed.get(token) or self._tokenizer.token_bytes(token))
        )

    def finish(self) -> str:
        """What is left: U+FFFD for an unfinished character, else "". The next `feed` starts another reply."""
        text = self._without_prefix(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._drop_space = self._tokenizer.space_prefix
        return text

    def _without_prefix(self, text: str) -> str:
        """SentencePiece's own space before the first word is not text."""
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text
