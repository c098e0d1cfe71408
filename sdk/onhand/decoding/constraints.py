"""Holds a reply to a grammar: at each step, which tokens may come. The work is llguidance's.

What a schema leaves free in writing JSON is fixed: one space behind a comma and a colon, and none elsewhere, so that a
model that is fond of white space cannot go on with that for ever.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onhand.errors import GrammarError
from onhand.formats.tokenizer import Tokenizer
from onhand.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

F32 = npt.NDArray[np.float32]

KEPT_GRAMMARS = 32
"""How many compiled grammars are kept for the next reply that asks for the same."""


class Constraint:
    """Where one reply is in its grammar. One caller, one thread."""

    def __init__(self, matcher: LLMatcher, kind: str) -> None:
        self._matcher = matcher
        self._kind = kind

    @property
    def complete(self) -> bool:
        """Whether the reply is whole and nothing can follow but its end."""
        return bool(self._matcher.is_stopped())

    def allowed(self, logits: F32) -> F32:
        """The logits with those of every token that may not come next at minus infinity. logits: (vocab,) float32.

        Raises GrammarError where no token may.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(mask, count=len(logits), bitorder="little").view(np.bool_)
        self._check()
        if not bits.any():
            raise GrammarError(self._kind, "no token of this model can go on from here")
        return np.where(bits, logits, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """The reply goes on with this token, which must be an allowed one. Raises GrammarError."""
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        """Tokens in which what must come next is usually written; none where there is a choice."""
        return [] if self.complete else list(self._matcher.compute_ff_tokens())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._kind, _summary(self._matcher.get_error()))


class Grammars:
    """Compiles grammars for one tokenizer, and keeps the last few. Any number of threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def constraint(self, grammar: Grammar) -> Constraint:
        """A reply's constraint, at its beginning.

        Raises GrammarError, with what is not supported or why there is no such text at all.
        """
        with self._lock:
            matcher = self._compiled.pop(grammar, None) or self._compile(grammar)
            self._compiled[grammar] = matcher
            if len(self._compiled) > KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
            return Constraint(matcher.deep_copy(), grammar.kind)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer)
        source = _source(grammar)
        problem = LLMatcher.validate_grammar(source, self._vocabulary)
        if problem and not problem.startswith("WARNING"):
            raise GrammarError(grammar.kind, _summary(problem))
        matcher = LLMatcher(self._vocabulary, source, log_level=0)
        beginning = matcher.deep_copy()
        if not any(beginning.compute_bitmask()) or beginning.is_error():
            raise GrammarError(grammar.kind, "there is no such text")
        return matcher


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    match grammar.kind:
        case "json_schema":
            return _json_source(grammar.text)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)
        case "gbnf":
            try:
                return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.text))
            except Exception as error:  # the converter raises nothing more special
                raise GrammarError(grammar.kind, _summary(str(error))) from error


def _json_source(schema: str) -> str:
    from llguidance import LLMatcher

    style: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if schema == "false":
        raise GrammarError("json_schema", "the schema false allows no value")
    try:
        return LLMatcher.grammar_from_json_schema("{}" if schema == "true" else schema, overrides=style)
    except ValueError as error:
        raise GrammarError("json_schema", _summary(str(error))) from error


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(
        TokenizerWrapper(_Pieces(tokenizer)), n_vocab=tokenizer.size, eos_token=sorted(tokenizer.end_ids)
    )


class _Pieces:
    """What llguidance asks of a tokenizer; hidden tokens are none of the text's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(tokenizer.end_ids)
        self.special_token_ids = [token for token in range(tokenizer.size) if tokenizer.is_hidden(token)]
        hidden = set(self.special_token_ids)
        self.tokens = [
            b"\xff<%d>" % token if token in hidden else tokenizer.token_bytes(token) for token in range(tokenizer.size)
        ]

    def __call__(self, text: Any) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _summary(problem: str) -> str:
    """One line of what may be many: the one that says what is wrong."""
    lines = [line.strip() for line in problem.strip().splitlines()] or [""]
    said = next((line for line in lines if line.startswith("error: ")), lines[0])
    said = said.removeprefix("ERROR: ").removeprefix("error: ")
    return said.replace("Unimplemented keys: ", "not supported: ").partition(" Enable ")[0][:300]
