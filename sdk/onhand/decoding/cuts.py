"""What of a token sequence is out of the model's sight: spans that were evicted, or never read.

A conversation is one growing sequence of ids. A window that slid sees it with holes; `Cuts` are the holes. An index
counts in the whole sequence, a place in what is left of it, which is what a KV cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cuts:
    """Spans [start, end) of indices, ascending, none of them empty, none touching another."""

    spans: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """How many tokens are cut."""
        return sum(end - start for start, end in self.spans)

    def place(self, index: int) -> int:
        """How many tokens before that index are left: the place of the token there, if it is."""
        return index - sum(min(end, index) - start for start, end in self.spans if start < index)

    def count(self, start: int, end: int) -> int:
        """How many tokens of a span are left."""
        return self.place(end) - self.place(start)

    def until(self, index: int) -> Cuts:
        """What is cut of the first tokens up to that index."""
        return Cuts(tuple((start, min(end, index)) for start, end in self.spans if start < index))

    def adding(self, start: int, end: int) -> Cuts:
        """With one more span, which may swallow or touch others."""
        if start >= end:
            return self
        apart = [span for span in self.spans if span[1] < start or span[0] > end]
        joined = [span for span in self.spans if span not in apart]
        whole = (min([start, *(first for first, _ in joined)]), max([end, *(last for _, last in joined)]))
        return Cuts(tuple(sorted([*apart, whole])))

    def union(self, other: Cuts) -> Cuts:
        """What is cut by either."""
        both = self
        for start, end in other.spans:
            both = both.adding(start, end)
        return both

    def first_difference(self, other: Cuts, length: int) -> int:
        """The first index, at most `length`, from which on the two cut differently."""
        differing = set(self.until(length).spans) ^ set(other.until(length).spans)
        return min((start for start, _ in differing), default=length)

    def start_of_cut_after(self, index: int, length: int) -> int:
        """Where the next span behind that index begins, or `length`."""
        return next((start for start, _ in self.spans if start > index), length)

    def end_of_cut_at(self, index: int) -> int:
        """The end of the span that holds that index, or the index itself where nothing is cut."""
        return next((end for start, end in self.spans if start <= index < end), index)

    def start_of_cut_around(self, index: int) -> int:
        """The start of the span that index lies strictly inside of, or the index itself."""
        return next((start for start, end in self.spans if start < index < end), index)

    def visible(self, ids: Sequence[int]) -> list[int]:
        """The ids that are left."""
        kept: list[int] = []
        index = 0
        for start, end in self.spans:
            kept += ids[index:start]
            index = end
        return kept + list(ids[index:])
