"""Settings: frozen, keyword-only, checked once, with units in the names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from onhand.errors import OptionError
from onhand.grammar import Grammar

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_SEED = 2**64 - 1

Overflow = Literal["slide", "recompute", "error"]
"""What happens to a conversation that outgrows its window."""

DEFAULT_CONTEXT_TOKENS = 8192
"""The context where neither the user nor the model asks for less."""


def _number(name: str, value: float, low: float, high: float, allowed: str) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not low <= value <= high:  # which no NaN is
        raise OptionError(name, value, allowed)


def _whole(name: str, value: int | None, low: int, high: float, allowed: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise OptionError(name, value, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How a reply is generated.

    max_tokens: most tokens to generate, the prompt not counted; the default ends the endless loops that small models
        fall into; None sets no limit, or with overflow="error" the context; 0 reads the prompt and gives an empty
        reply that ended by "length".
    temperature: 0 is greedy (the highest logit, the lowest id on ties) and ignores the other filters.
    top_k: keep this many of the likeliest tokens; 0 keeps all.
    top_p: keep the likeliest tokens up to this total probability (Holtzman et al. 2020).
    min_p: keep tokens at least this fraction as likely as the likeliest (Nguyen et al. 2024).
    repetition_penalty: divides a positive and multiplies a negative logit of a recent token (Keskar et al. 2019).
    presence_penalty, frequency_penalty: subtracted once, or once per occurrence, from a recent token's logit.
    penalty_window_tokens: recent means among this many of the tokens last generated in this reply; the prompt never
        counts, so that an answer keeps the prompt's language and names.
    seed: None draws one, which the reply reports; every other number, 0 included, repeats the same reply.
    stop: the reply ends before the first of these strings.
    speculate: whether tokens are guessed from what was said before, and verified several in a run; that never changes
        the reply. None does it where it is measured to be faster; True always, False never.
    deadline_seconds: the reply ends with what it has so long after it was asked for, waiting for its turn included.
    grammar: what the reply is held to; `Chat.ask(..., returns=)` makes one of a type.
    """

    max_tokens: int | None = 1024
    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window_tokens: int = 256
    seed: int | None = None
    stop: Sequence[str] = ()
    speculate: bool | None = None
    deadline_seconds: float | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, math.inf, "a whole number from 0, or None")
        _number("temperature", self.temperature, 0, 100, "0 (greedy) to 100")
        _whole("top_k", self.top_k, 0, math.inf, "a whole number from 0 (all tokens)")
        _number("top_p", self.top_p, 0, 1, "0 to 1")
        _number("min_p", self.min_p, 0, 1, "0 to 1")
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100, "0.01 to 100 (1 is off)")
        _number("presence_penalty", self.presence_penalty, -100, 100, "-100 to 100 (0 is off)")
        _number("frequency_penalty", self.frequency_penalty, -100, 100, "-100 to 100 (0 is off)")
        _whole("penalty_window_tokens", self.penalty_window_tokens, 0, math.inf, "a whole number from 0")
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED, "a whole number from 0 to 2**64 - 1, or None to draw one")
        if self.speculate not in (None, True, False):
            raise OptionError("speculate", self.speculate, "True, False, or None for where it is faster")
        if self.deadline_seconds is not None:
            _number("deadline_seconds", self.deadline_seconds, 0, math.inf, "seconds from 0, or None")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise OptionError("grammar", self.grammar, "onhand.Grammar, or None")
        self._check_stop()

    def _check_stop(self) -> None:
        listed = isinstance(self.stop, Sequence) and not isinstance(self.stop, str)
        if not listed or not all(isinstance(text, str) for text in self.stop):
            raise OptionError("stop", self.stop, "a list of strings")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise OptionError("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS}")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_CHARS:
                raise OptionError("stop", text, f"strings of 1 to {MAX_STOP_CHARS} characters")
        object.__setattr__(self, "stop", tuple(self.stop))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """What the KV cache holds.

    context_tokens: the window: most tokens of a conversation that are held at a time; None takes the model's own limit,
        at most DEFAULT_CONTEXT_TOKENS.
    slots: how many conversations are held at a time, each with a window of its own. More may be open: they share.
    overflow: what happens to a conversation that outgrows the window. "slide" takes the oldest turns out of the cache
        and goes on at once; "recompute" takes out the same and reads what stays once more, as if the rest had never
        been said; "error" refuses.
    sinks: tokens at the beginning that are never dropped; None keeps the system prompt, else 4 tokens of a conversation
        and 64 of a plain text.
    evict_tokens: least that is dropped at a time; None takes an eighth of the window.
    kv_bits: bits of each number: 32 is exact; 8 takes a quarter of the memory and decodes faster once thousands of
        tokens are held, but reads prompts more slowly.
    """

    context_tokens: int | None = None
    slots: int = 1
    overflow: Overflow = "slide"
    sinks: int | None = None
    evict_tokens: int | None = None
    kv_bits: Literal[8, 32] = 32

    def __post_init__(self) -> None:
        if self.context_tokens is not None:
            _whole("context_tokens", self.context_tokens, 8, 2**24, "a whole number from 8 to 2**24, or None")
        _whole("slots", self.slots, 1, 64, "a whole number from 1 to 64")
        if self.overflow not in get_args(Overflow):
            raise OptionError("overflow", self.overflow, f"one of {', '.join(get_args(Overflow))}")
        if self.sinks is not None:
            _whole("sinks", self.sinks, 0, 2**24, "a whole number from 0, or None")
        if self.evict_tokens is not None:
            _whole("evict_tokens", self.evict_tokens, 1, 2**24, "a whole number from 1, or None")
        if type(self.kv_bits) is not int or self.kv_bits not in (8, 32):
            raise OptionError("kv_bits", self.kv_bits, "8 or 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Where a model runs.

    device: "auto", or the name of one backend that must be used.
    threads: CPU threads; None takes the physical performance cores that this process may use.
    oversize: what becomes of a model that does not fit the memory that is left: "refuse" raises MemoryPlanError before
        anything is loaded; "load" loads it all the same, and the system may end this or another program for it.
    """

    device: str = "auto"
    threads: int | None = None
    oversize: Literal["refuse", "load"] = "refuse"

    def __post_init__(self) -> None:
        if self.threads is not None:
            _whole("threads", self.threads, 1, 1024, "a whole number from 1 to 1024, or None")
        if self.oversize not in ("refuse", "load"):
            raise OptionError("oversize", self.oversize, "refuse or load")


Options = TypeVar("Options", GenerationOptions, CacheOptions, DeviceOptions)


def checked_options(name: str, value: Options | None, default: Options) -> Options:
    """The value, or for None the default. Raises OptionError for what is no such settings."""
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise OptionError(name, value, f"onhand.{type(default).__name__}(...), or None")
    return value


def checked_text(name: str, text: str) -> str:
    """The text. Raises OptionError for what is none, or cannot be encoded."""
    if not isinstance(text, str):
        raise OptionError(name, type(text).__name__, "a string")  # its type: errors are logged, what was said is not
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionError(name, text[error.start : error.end], "text without lone surrogates") from error
    return text
