"""Guesses at the next tokens, verified by the model in one run, which costs less than a run for each.

Guesses never change a reply. The engine chooses a token from each row of logits as it would without guesses, and goes
on to the next row only if the choice was the guess: that is greedy decoding bit by bit, and when sampling the same
choices from the same seed. For guesses that are no draw from a distribution it accepts as often as Leviathan et al.
(2023) do.

How many guesses pay is measured while it runs: what a run of so many rows takes on this machine, and how often guesses
of their kind were right so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

MAX_GUESSES = 15
"""With the token itself 16 rows, up to which the weights and not the products decide what a run takes."""

WORTH_IT = 1.05
"""Guesses are made where tokens per second are expected to be at least that many times as many."""


@dataclass(frozen=True, slots=True)
class Guess:
    """tokens: what may come next. kind: guesses of one kind are about equally often right; below Speculation.KINDS."""

    tokens: Sequence[int]
    kind: int


class Guesser(Protocol):
    """Guesses how one sequence goes on. One caller, one thread."""

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        """At most so many tokens that may follow the ids, which only ever grow; None for no idea."""


class PromptLookup:
    """Guesses that what followed the last few tokens before follows them again: edited texts, code, quotations."""

    LEAST_MATCH, LONGEST_MATCH = 2, 8
    CANDIDATES = 32
    LOOKED_AT = 16384
    """How far back it looks, in tokens: it takes a few microseconds for every thousand."""

    def __init__(self) -> None:
        self._ids = np.empty(1024, np.int32)
        self._count = 0

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        """What followed the longest match, the latest of equals."""
        self._catch_up(ids)
        seen = self._ids[max(0, self._count - self.LOOKED_AT) : self._count]
        if len(seen) <= self.LEAST_MATCH:
            return None
        ends = np.flatnonzero((seen[1:-1] == seen[-1]) & (seen[:-2] == seen[-2])) + 2  # behind each match
        best, length = 0, 0
        for end in ends[: -self.CANDIDATES - 1 : -1].tolist():
            matched = self._match(seen, end)
            if matched > length:
                best, length = end, matched
            if length == self.LONGEST_MATCH:
                break
        if not length:
            return None
        return Guess(seen[best : best + most].tolist(), length - self.LEAST_MATCH)

    def _match(self, seen: np.ndarray[tuple[int], np.dtype[np.int32]], end: int) -> int:
        most = min(self.LONGEST_MATCH, end)
        different = np.flatnonzero(seen[end - most : end] != seen[len(seen) - most :])
        return most - int(different[-1]) - 1 if len(different) else most

    def _catch_up(self, ids: Sequence[int]) -> None:
        if len(ids) > len(self._ids):
            self._ids = np.resize(self._ids, 2 * len(ids))
        self._ids[self._count : len(ids)] = ids[self._count :]
        self._count = len(ids)


@dataclass(slots=True)
class Speculation:
    """Decides how many guesses to verify. seconds: of a run by its rows; right, made: guesses by their kind."""

    KINDS = PromptLookup.LONGEST_MATCH - PromptLookup.LEAST_MATCH + 3
    DRAFTED, FORCED = KINDS - 2, KINDS - 1  # by a model; by a grammar that leaves no choice but how it is written
    FORGETTING = 0.98
    PRIOR_WEIGHT = 4.0
    SECONDS_WEIGHT = 0.1

    _seconds: dict[int, float] = field(default_factory=dict)
    _right: list[float] = field(default_factory=lambda: [0.0] * Speculation.KINDS)
    _made: list[float] = field(default_factory=lambda: [0.0] * Speculation.KINDS)

    def took(self, rows: int, seconds: float) -> None:
        """A run of so many rows took so long."""
        known = self._seconds.get(rows, seconds)
        self._seconds[rows] = known + self.SECONDS_WEIGHT * (seconds - known)

    def verified(self, guess: Guess, right: int) -> None:
        """So many guesses were right before the first wrong one, if there was one."""
        self._made[guess.kind] = self.FORGETTING * self._made[guess.kind] + min(right + 1, len(guess.tokens))
        self._right[guess.kind] = self.FORGETTING * self._right[guess.kind] + right

    def worth(self, guess: Guess) -> Guess | None:
        """The guess, cut to the length that promises most tokens per second; None if none promises enough."""
        length = self.length(guess.kind, len(guess.tokens))
        return Guess(guess.tokens[:length], guess.kind) if length else None

    def length(self, kind: int, most: int, seconds: float = 0.0) -> int:
        """How many guesses of that kind promise most tokens per second, 0 to `most`. seconds: what making one takes."""
        chance, single = self._chance(kind), self._seconds.get(1)
        effort = seconds / single if single else 0.0
        expected, reach = 1.0, 1.0
        best, length = WORTH_IT, 0
        for count in range(1, most + 1):
            reach *= chance
            expected += reach
            gain = expected / (self._cost(1 + count) + count * effort)
            if gain > best:
                best, length = gain, count
        return length

    def _chance(self, kind: int) -> float:
        """How likely a guess is right when those before it were."""
        priors = {self.DRAFTED: 0.7, self.FORCED: 0.9}
        prior = priors.get(kind, 0.4 + 0.5 * kind / (self.DRAFTED - 1))
        return (self._right[kind] + self.PRIOR_WEIGHT * prior) / (self._made[kind] + self.PRIOR_WEIGHT)

    def _cost(self, rows: int) -> float:
        """The time of a run of so many rows, in runs of one; between what was measured a straight line."""
        single = self._seconds.get(1)
        if single is None:
            return 1 + 0.2 * (rows - 1)
        known = sorted(count for count in self._seconds if count > 1)
        if rows in self._seconds:
            return self._seconds[rows] / single
        below = max((count for count in known if count < rows), default=1)
        above = min((count for count in known if count > rows), default=None)
        if above is None:
            return (self._seconds[below] + 0.2 * single * (rows - below)) / single
        share = (rows - below) / (above - below)
        return (self._seconds[below] * (1 - share) + self._seconds[above] * share) / single
