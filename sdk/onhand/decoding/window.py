"""What a window drops when a conversation grows out of it.

Whole turns go first, the oldest first; the system prompt and pinned turns stay, and so does the turn that is being
answered. A reply that alone outgrows the window drops its oldest tokens in blocks, behind the attention sinks: the
first tokens, which models attend to whatever they say (StreamingLLM, Xiao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from onhand.decoding.cuts import Cuts
from onhand.errors import ContextOverflowError, OptionError
from onhand.options import CacheOptions

RAW_SINKS = 64
"""Sinks of a text that has no turns. Fewer cost quality: with 4, perplexity is 2% above that of recomputing."""

TURN_SINKS = 4
"""Sinks of a conversation without a system prompt."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and what followed it, up to the next question: dropped whole or not at all.

    start: the index of its first token. first_message: the index of its first message. pinned: never dropped.
    """

    start: int
    first_message: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with what a window needs to know of them.

    turns: where turns begin, ascending; what lies before the first, the system prompt, is never dropped. Empty for
    plain text, and for conversations whose template does not tell. messages: how many messages the ids stand for.
    """

    ids: Sequence[int]
    turns: tuple[Turn, ...] = ()
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """tokens: most that are held at a time. block: least that is dropped at a time. sinks: None for the default."""

    tokens: int
    block: int
    sinks: int | None = None

    @classmethod
    def of(cls, options: CacheOptions, tokens: int) -> Window:
        """The window that the options ask for in a cache of so many tokens. Raises OptionError for too many sinks."""
        sinks, block = options.sinks, options.evict_tokens or max(tokens // 8, 1)
        if (sinks or 0) + block >= tokens:
            most = tokens - 1 - (sinks or 0)
            raise OptionError(
                "evict_tokens", block, f"at most {most} beside {sinks or 0} sinks in a window of {tokens}"
            )
        return cls(tokens, block, sinks)

    def fit_prompt(self, prompt: Prompt, cuts: Cuts) -> Cuts:
        """The cuts by which the prompt and one more token fit, at least `cuts`.

        Raises ContextOverflowError when what is never dropped does not fit.
        """
        length = len(prompt.ids)
        if length - cuts.total < self.tokens:
            return cuts
        turns = _droppable(prompt.turns)
        fixed = length - sum(end - start for start, end in turns)
        if fixed >= self.tokens:
            raise ContextOverflowError(fixed, self.tokens)
        return _drop(turns, cuts, length - self.tokens + self.block)

    def make_room(self, prompt: Prompt, length: int, cuts: Cuts) -> Cuts:
        """The cuts by which a reply can go on. length: of the prompt and what was generated, all of it read.

        Raises ContextOverflowError when all that could be dropped is pinned.
        """
        wanted = cuts.total + self.block
        cuts = _drop(_droppable(prompt.turns), cuts, wanted)
        place = self._first_loose(prompt)
        pinned = [span for span, turn in zip(_spans(prompt.turns), prompt.turns, strict=False) if turn.pinned]
        for start, end in [*pinned, (length, length)]:
            if place < start and cuts.total < wanted:
                loose = min(cuts.count(place, start), wanted - cuts.total)
                cuts = cuts.adding(place, _after(place, loose, cuts)) if loose else cuts
            place = max(place, end)
        if length - cuts.total >= self.tokens:
            raise ContextOverflowError(length - cuts.total, self.tokens)
        return cuts

    def _first_loose(self, prompt: Prompt) -> int:
        """The index behind the attention sinks."""
        if self.sinks is not None:
            return self.sinks
        most = (self.tokens - self.block) // 2
        if not prompt.turns:
            return min(RAW_SINKS, most)
        system = prompt.turns[0].start
        return system if TURN_SINKS <= system <= most else min(TURN_SINKS, most)


def _spans(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Every turn but the last, as a span of indices."""
    return [(turn.start, following.start) for turn, following in pairwise(turns)]


def _droppable(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """The turns that may be dropped whole, the oldest first: all but the pinned ones and the last."""
    return [span for span, turn in zip(_spans(turns), turns, strict=False) if not turn.pinned]


def _drop(spans: Sequence[tuple[int, int]], cuts: Cuts, wanted: int) -> Cuts:
    """Cut span after span until so many tokens are cut, or all spans are."""
    for start, end in spans:
        if cuts.total >= wanted:
            break
        cuts = cuts.adding(start, end)
    return cuts


def _after(start: int, count: int, cuts: Cuts) -> int:
    """The index behind the next `count` tokens that are left, from `start` on."""
    index = cuts.end_of_cut_at(start)
    for first, last in cuts.spans:
        if first >= index:
            if first - index >= count:
                break
            count -= first - index
            index = last
    return index + count
