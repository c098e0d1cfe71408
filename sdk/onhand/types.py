"""The values that go in and out of a model and its conversations. All frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Role = Literal["system", "user", "assistant", "tool"]
"""Who speaks."""

FinishReason = Literal["stop", "length", "deadline", "cancelled", "tool_calls"]
"""Why a reply ended: the model or a stop string ended it, a limit of tokens cut it, its time was up, it was cancelled,
or it calls tools and waits for what they say."""

ToolChoice = Literal["auto", "none"]
"""Whether a reply may call tools, or is only told of them."""

Progress = Callable[[str, int, int], None]
"""Told (what, done, total) while something long runs; the units of done and total are alike, total >= 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a model takes of memory, in bytes, and what is there for it: made before it is loaded.

    weights_bytes: as its backend holds them. kv_bytes: the KV cache, every slot at the full window. overhead_bytes: the
    rest, at its most. available_bytes: what can still be taken without swapping; None where the system does not say.
    limited_by: what leaves no more. largest_window_tokens: the largest window that fits with as many slots; 0 for none,
    None where what is available is not known. remedy: what to choose instead where it does not fit.
    """

    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    available_bytes: int | None
    limited_by: str
    window_tokens: int
    slots: int
    kv_bits: int
    largest_window_tokens: int | None = None
    remedy: str = ""

    @property
    def total_bytes(self) -> int:
        """Weights, KV cache and overhead."""
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the model fits; None where nobody knows."""
        return None if self.available_bytes is None else self.total_bytes <= self.available_bytes


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called. arguments: a JSON object. id: tells the calls of a conversation apart."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it. parameters: the JSON schema of its arguments, of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that the model is told of, and whether it may call them."""

    specs: tuple[ToolSpec, ...] = ()
    choice: ToolChoice = "auto"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. pinned: stays in the model's sight when the window slides.

    thinking, tool_calls: of an assistant's message, what it thought before it said anything, and the tools that it
    called. tool_name, tool_call_id: of a tool's message, which call it answers.
    """

    role: Role
    content: str
    pinned: bool = False
    _: KW_ONLY
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of the window a question takes.

    prompt_tokens: the whole prompt that it would be asked with. context_tokens: what the window holds.
    """

    prompt_tokens: int
    context_tokens: int

    @property
    def free_tokens(self) -> int:
        """How long a reply can become before the window is full."""
        return max(self.context_tokens - self.prompt_tokens, 0)

    @property
    def deficit_tokens(self) -> int:
        """How many tokens the prompt has too many, one left for the reply; 0 when it fits."""
        return max(self.prompt_tokens + 1 - self.context_tokens, 0)

    @property
    def fits(self) -> bool:
        """Whether the model sees all of it; when not, `CacheOptions.overflow` says what happens."""
        return self.deficit_tokens == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a reply took.

    prompt_tokens counts the whole prompt with the template's own tokens; cached_tokens is the part of it whose KV was
    reused; completion_tokens counts every generated token, the end-of-turn token included; evicted_tokens are those of
    both that are out of the model's sight at the end; guessed_tokens are those of the reply that were guessed and
    verified several in a run. The seconds are those of the model and the choice of tokens, not those that the reader of
    the stream took.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    evicted_tokens: int = 0
    guessed_tokens: int = 0
    prefill_seconds: float
    decode_seconds: float

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A finished reply.

    text: what is meant to be read. thinking: what a reasoning model thought before. tool_calls: what it called. seed
    reproduces it with the same model, options and messages. stop_string is the one that matched, if one did.
    problem: what is wrong with a tool call that could not be read, which then is text.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    seed: int
    stop_string: str | None = None
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedReply(Reply, Generic[T]):
    """A finished reply that was to have a value (`returns=`). outcome: that, or the ReplyValueError in its stead."""

    outcome: T | Exception

    @property
    def value(self) -> T:
        """What the reply says. Raises ReplyValueError when it was cut short, or is not what its type takes."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """The prompt is being read: done_tokens of total_tokens are in the cache. Sent after every chunk but the last."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class EvictedEvent:
    """The window slid: the model no longer sees all of the conversation.

    messages: which of those that it was given it sees nothing of; tokens: how many tokens in all are out of its sight.
    """

    messages: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class TextEvent:
    """The next piece of the reply: whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingEvent:
    """The next piece of what a reasoning model thinks before it answers: whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """The model calls a tool. Whoever reads the stream runs it, or does not."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class PartialEvent:
    """What there is of the value that a reply is to have: plain data, whose last string may go on."""

    value: Any


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The last event of a stream that was read to its end."""

    reply: Reply


Event = PrefillEvent | EvictedEvent | ThinkingEvent | TextEvent | PartialEvent | ToolCallEvent | DoneEvent
"""What a stream yields."""
