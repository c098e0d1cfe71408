"""Takes a reply apart while it is written: what is thought, what is said, and which tools are called."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from onhand.prompts.calls import Dialect, read_calls
from onhand.prompts.literals import LiteralError, UnfinishedError
from onhand.prompts.schemas import MisfitError, conform
from onhand.types import TextEvent, ThinkingEvent, ToolCall, ToolCallEvent, ToolOffer

THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought\n", "<channel|>"))
"""What begins and ends a thought, by family."""

Piece = TextEvent | ThinkingEvent | ToolCallEvent

_KEYS = ("name", "function", "tool", "tool_name", "type", "id", "arguments", "parameters")
_FENCE = re.compile(r"```[a-z_]*[ \t]*\n")
_FENCE_BEGINS = re.compile(r"`{1,2}|```[a-z_]*[ \t]*")
_TAIL_SPACE = re.compile(r"\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What may stand in a reply. thought: what begins and ends one, if the model thinks. dialect, offer: of its calls.

    in_thought: whether the prompt has begun a thought already.
    """

    thought: tuple[str, str] | None = None
    in_thought: bool = False
    dialect: Dialect | None = None
    offer: ToolOffer | None = None

    @property
    def markers(self) -> Collection[str]:
        """The texts that are no text of the reply, and must be seen though they are tokens of their own."""
        calls = (self.dialect.opening, self.dialect.closing) if self.dialect and self.offer else ()
        inside = ("[ARGS]", "[CALL_ID]", '<|"|>', "<escape>") if calls else ()
        return {marker for marker in (*(self.thought or ()), *calls, *inside) if marker}

    @property
    def ends(self) -> Collection[str]:
        """The control texts that end the reply besides the model's own."""
        return {self.dialect.response} if self.dialect and self.offer and self.dialect.response else ()


class ReplyReader:
    """Reads one reply. Whatever the pieces that it comes in, the events, joined, are the same.

    A call counts when it stands in the dialect's markers, or when it names a tool of the offer and has arguments that
    fit; all else is text. Only what may yet become a call is held back. problem: what is wrong with a call in markers
    that could not be read.
    """

    def __init__(self, shape: Shape) -> None:
        self._dialect = shape.dialect if shape.offer else None
        self._specs = {spec.name: spec for spec in shape.offer.specs} if shape.offer else {}
        self._thought = shape.thought
        self._state = "thought" if shape.in_thought and shape.thought else "begin"
        self._held = ""
        self._finished = False
        self._cut = False
        self._after_call = False
        self._thought_over = False
        self._names = re.compile(rf"(?:{'|'.join(map(re.escape, self._specs))})\(") if self._specs else None
        self.problem = ""

    def feed(self, text: str) -> list[Piece]:
        """The next piece of the reply; what is sure of it."""
        if self._dialect is None and self._state == "text":
            return [TextEvent(text)] if text else []
        self._held += text
        return list(self._pieces())

    def finish(self, *, cut: bool) -> list[Piece]:
        """The reply has ended; what was held back. cut: before its end."""
        self._finished, self._cut = True, cut
        return list(self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        """Run the state's step until it waits for more: it then returns None."""
        steps = {"thought": self._think, "begin": self._begin, "text": self._say, "call": self._call}
        while (found := steps[self._state]()) is not None:
            for piece in found:
                if isinstance(piece, ToolCallEvent) or piece.text:
                    yield piece

    def _think(self) -> list[Piece] | None:
        assert self._thought is not None
        closing = self._thought[1]
        at = self._held.find(closing)
        if at < 0:
            sure = len(self._held) if self._finished else len(self._held) - _overlap(self._held, closing)
            if not sure:
                return None
            thought, self._held = self._held[:sure], self._held[sure:]
            return [ThinkingEvent(thought)]
        thought, self._held = self._held[:at], self._held[at + len(closing) :]
        self._state = "begin"
        self._thought = None
        self._thought_over = True
        return [ThinkingEvent(thought)]

    def _begin(self) -> list[Piece] | None:
        """Before the first word."""
        word = self._held.lstrip()
        if not word and not self._finished:
            return None
        opening = self._thought[0] if self._thought else ""
        if opening and word.startswith(opening):
            self._held = word[len(opening) :]
            self._state = "thought"
            return []
        if opening and opening.startswith(word) and not self._finished:
            return None
        self._state = "text"
        if self._thought_over:
            self._held = word  # models part what they say from the thought by an empty line
        return []

    def _say(self) -> list[Piece] | None:
        if not self._held:
            return None
        if self._dialect is None:
            text, self._held = self._held, ""
            return [TextEvent(text)]
        if self._after_call and not self._finished and not self._held.strip(" \t\r\n;,"):
            return None
        opening = self._dialect.opening
        at = self._held.find(opening) if opening else -1
        marked = at >= 0
        candidate = self._candidate(at if marked else len(self._held))
        if candidate is not None:
            return self._unmarked(candidate)
        if marked:
            before, self._held = self._held[:at], self._held[at:]
            self._state = "call"
            return [self._text(before.rstrip())]
        keep = 0 if self._finished else max(_overlap(self._held, opening), self._open_tail())
        sure = len(self._held) - keep
        if not self._finished:
            space = _TAIL_SPACE.search(self._held, 0, sure)
            sure = space.start() if space else sure
        if not sure:
            return None
        text, self._held = self._held[:sure], self._held[sure:]
        return [self._text(text)]

    def _text(self, text: str) -> TextEvent:
        """Text to say: what stands between two calls to part them is none."""
        if self._after_call:
            text = text.lstrip(" \t\r\n;,")
            self._after_call = not text
        return TextEvent(text)

    def _candidate(self, end: int) -> int | None:
        """Where before `end` something begins that may be a call without markers."""
        for at in range(end):
            char = self._held[at]
            if char in "{[" and self._viable(at):
                return at
            begins_line = not self._held[:at].rpartition("\n")[2].strip()
            if begins_line and char == "`" and (fence := _FENCE.match(self._held, at)) and self._viable(fence.end()):
                return at
            if begins_line and self._names and self._names.match(self._held, at):
                return at
        return None

    def _open_tail(self) -> int:
        """How much of the end may be the beginning of a fence, or of a tool's name at the beginning of a line."""
        line = self._held.rpartition("\n")[2]
        word = line.lstrip()
        begins = bool(word) and any(f"{name}(".startswith(word) for name in self._specs)
        return len(line) if word and (begins or _FENCE_BEGINS.fullmatch(word)) else 0

    def _viable(self, at: int) -> bool:
        """Whether what begins there may yet be a call: its first word is a key of one, or a tool's name."""
        word = self._held[at:].lstrip("[{ \t\r\n").lstrip("\"'")
        if not word:
            return True
        firsts = [*_KEYS, *(f"{name}(" for name in self._specs)]
        return any(first.startswith(word) or word.startswith(first) for first in firsts)

    def _unmarked(self, at: int) -> list[Piece] | None:
        """A call without markers, or text; None as long as it may be either."""
        fence = _FENCE.match(self._held, at)
        start = fence.end() if fence else at
        limit = self._held.find("```", start) if fence else -1
        body = self._held[start:limit] if limit >= 0 else self._held[start:]
        try:
            calls, end = read_calls(f"{body}\n")
        except UnfinishedError:
            if not self._finished and limit < 0:
                return None
            return self._as_text(at, start)
        except LiteralError:
            return self._as_text(at, start)
        if fence and limit < 0 and not self._finished:
            return None
        end = len(self._held) if end > len(body) else start + end
        if fence:
            end = limit + 3 if limit >= 0 else len(self._held)
        fitted = [self._fitted(call) for call in calls]
        if any(call is None for call in fitted):
            return self._as_text(at, end)
        before, self._held = self._held[:at], self._held[end:]
        return [self._text(before.rstrip()), *self._called([call for call in fitted if call is not None])]

    def _as_text(self, at: int, end: int) -> list[Piece]:
        end = max(end, at + 1)
        text, self._held = self._held[:end], self._held[end:]
        return [self._text(text)]

    def _call(self) -> list[Piece] | None:
        """A call in markers; None as long as it has no end."""
        assert self._dialect is not None
        opening, closing = self._dialect.opening, self._dialect.closing
        body = self._held[len(opening) :]
        ends = [found.start() for found in re.finditer(re.escape(closing), body)] if closing else [len(body)]
        if self._finished and not self._cut:
            ends.append(len(body))
        for end in ends:
            try:
                calls, read = read_calls(f"{body[:end]}\n")
            except UnfinishedError:
                continue  # a closing marker within a string
            except LiteralError as error:
                return self._misread(body, end, f"a tool call could not be read: {error}")
            if closing and body[read:end].strip():
                return self._misread(body, end, "something stands behind a tool call, before its end")
            rest = end + len(closing) if closing else min(read, len(body))
            self._held = body[rest:]
            self._state = "text"
            return self._called([self._fitted(call) or call for call in calls])
        if not self._finished:
            return None
        problem = "a tool call was cut off" if self._cut else "a tool call has no end"
        return self._misread(body, len(body), problem)

    def _misread(self, body: str, end: int, problem: str) -> list[Piece]:
        """What was in the markers is shown, so that nothing is lost, and the problem told."""
        assert self._dialect is not None
        self.problem = problem
        self._held = body[end:].removeprefix(self._dialect.closing) if self._dialect.closing else body[end:]
        self._state = "text"
        return [TextEvent(body[:end].strip())]

    def _called(self, calls: list[ToolCall]) -> list[Piece]:
        self._after_call = True
        return [ToolCallEvent(call) for call in calls]

    def _fitted(self, call: ToolCall) -> ToolCall | None:
        """The call with its arguments in the types of the tool's schema; None for no tool of the offer, or a misfit."""
        spec = self._specs.get(call.name)
        if spec is None:
            return None
        try:
            return replace(call, arguments=conform(dict(call.arguments), spec.parameters))
        except MisfitError:
            return None


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of the text may be the beginning of the marker."""
    longest = min(len(marker) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)
