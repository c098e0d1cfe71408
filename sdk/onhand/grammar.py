"""What a reply must look like: a grammar, as a setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from onhand.errors import OptionError

GrammarKind = Literal["json_schema", "regex", "lark", "gbnf"]

MAX_GRAMMAR_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that a reply is held to, token by token. Made by one of the methods; for `GenerationOptions`.

    It is compiled when a reply is asked for; what cannot be, raises GrammarError then, before anything is generated.
    kind, text: what it was made of.
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise OptionError(self.kind, self.text, "a string")
        if len(self.text) > MAX_GRAMMAR_CHARS:
            raise OptionError(self.kind, f"{len(self.text)} characters", f"at most {MAX_GRAMMAR_CHARS}")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Self:
        """JSON that a schema (draft 2020-12) allows, its properties in the schema's order, on one line.

        A keyword that is not supported is a GrammarError, not ignored. A remote `$ref` is never fetched.
        """
        if not isinstance(schema, Mapping | bool):
            raise OptionError("schema", schema, "a JSON schema, as a dict")
        try:
            return cls("json_schema", json.dumps(schema, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError("schema", "the given one", f"what JSON can write ({error})") from error

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that a regular expression matches from end to end: Rust's syntax, which has no look-around."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, grammar: str) -> Self:
        """Text of a context-free grammar in Lark's notation, which begins at `start`, as llguidance reads it."""
        return cls("lark", grammar)

    @classmethod
    def gbnf(cls, grammar: str) -> Self:
        """Text of a context-free grammar in llama.cpp's notation, which begins at `root`."""
        return cls("gbnf", grammar)
