"""Logits to the next token id.

The order is that of transformers: penalties, what the grammar allows, top-k, softmax at the temperature, top-p, min-p.
Each filter keeps some of the likeliest tokens, at least one, and works on the probabilities of what the one before it
kept.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onhand.decoding.constraints import Constraint
from onhand.errors import NumericalError
from onhand.options import GenerationOptions

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_TINIEST_TEMPERATURE = 1e-30  # what is less would be 0 in float32

NEAR = np.float32(12)
"""Logits that far below the highest are looked at only where those above are too few: e^-12 is 6 in a million."""

FIRST_CANDIDATES = 256
"""How many tokens are sorted at first when top-k is off; more only when they do not hold enough of the probability."""


def penalized(logits: F32, counts: Mapping[int, int], *, repetition: float, presence: float, frequency: float) -> F32:
    """A copy of the logits with recent tokens made less likely.

    logits: (vocab,). counts: how often each token occurred recently. A positive logit is divided by `repetition`, a
    negative one multiplied (Keskar et al. 2019); then `presence` is subtracted once, `frequency` once per occurrence.
    """
    result = logits.copy()
    ids = np.fromiter(counts.keys(), np.intp, len(counts))
    times = np.fromiter(counts.values(), logits.dtype, len(counts))
    recent = logits[ids]
    with np.errstate(over="ignore"):  # an infinite result is found and reported by the caller
        scaled = np.where(recent > 0, recent / repetition, recent * repetition)
        result[ids] = scaled - presence - frequency * times
    return result


def likeliest(logits: F32, count: int) -> Ids:
    """The ids of the highest logits, highest first and the lower id on ties. logits: (vocab,). count: 1 or more."""
    if count >= len(logits):
        return _descending(logits)
    # Most logits are far below the highest, and comparing all is much quicker than partitioning all.
    near = np.flatnonzero(logits >= logits.max() - NEAR)
    ids = near if len(near) >= count else np.arange(len(logits))
    values = logits[ids]
    border = len(values) - count
    kept = np.flatnonzero(values >= np.partition(values, border)[border])
    return ids[kept[_descending(values[kept])[:count]]]


def _descending(values: F32) -> Ids:
    """The order of values from the highest to the lowest, on ties as they stand. values: (n,) float32, no NaN.

    numpy's stable argsort takes seven times as long as sorting whole numbers of 64 bits with the place in the low half.
    The bits of a float ascend as a whole number does if those of a negative one are flipped.
    """
    bits = np.subtract(np.float32(0), values).view(np.int32)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ascending.astype(np.int64) << 32) | np.arange(len(values))
    keys.sort()
    return (keys & 0xFFFFFFFF).astype(np.intp)


def top_p_count(weights: F32, total: float, top_p: float) -> int:
    """How many of the likeliest tokens hold the fraction top_p of the total, at least 1. After Holtzman et al. 2020.

    weights: (n,) unnormalized probabilities, highest first. total: theirs, or with those of the tokens left out here.
    """
    if top_p >= 1:
        return len(weights)
    return min(int(np.searchsorted(_sums(weights), top_p * total)) + 1, len(weights))


def min_p_count(weights: F32, min_p: float) -> int:
    """How many tokens are at least min_p times as likely as the likeliest, at least 1. After Nguyen et al. 2024.

    weights: (n,) unnormalized probabilities, highest first.
    """
    return int(np.searchsorted(-weights, -min_p * weights[0], side="right"))


def _sum(weights: F32) -> float:
    return float(weights.sum(dtype=np.float64))


def _sums(weights: F32) -> npt.NDArray[np.float64]:
    return weights.astype(np.float64).cumsum()


class Sampler:
    """Chooses the tokens of one reply. One caller, one thread.

    seed: repeats the same choices for the same logits and options; drawn from the system's entropy if none was given.
    """

    def __init__(self, options: GenerationOptions, vocab_size: int, constraint: Constraint | None = None) -> None:
        """vocab_size: the tokenizer's; logits beyond it belong to no token and are never chosen."""
        self._constraint = constraint
        self.seed = secrets.randbits(64) if options.seed is None else options.seed
        self._options = options
        self._vocab_size = vocab_size
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._steps = 0
        self._recent: deque[int] = deque()
        self._counts: dict[int, int] = {}
        penalties = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty)
        self._window = 0 if penalties == (1, 0, 0) else options.penalty_window_tokens

    def sample(self, logits: F32) -> int:
        """The next token. logits: (vocab,) float32, left as they are.

        Raises NumericalError when any logit is NaN or infinitely high, or no token is possible; GrammarError.
        """
        logits = np.asarray(logits[: self._vocab_size], np.float32)
        if self._counts:
            logits = penalized(
                logits,
                self._counts,
                repetition=self._options.repetition_penalty,
                presence=self._options.presence_penalty,
                frequency=self._options.frequency_penalty,
            )
        if self._constraint is not None:
            logits = self._constraint.allowed(logits)
        best = int(logits.argmax())  # of a NaN, if there is one; else the lowest id of the highest logit
        top = float(logits[best])
        if not math.isfinite(top):
            raise NumericalError(self._steps, "no token is possible" if top == -math.inf else f"a logit is {top}")
        token = best if self._options.temperature == 0 else self._draw(logits, top)
        self._steps += 1
        if self._constraint is not None:
            self._constraint.take(token)
        self._remember(token)
        return token

    def _draw(self, logits: F32, top: float) -> int:
        ids, weights = self._candidates(logits, top)
        sums = _sums(weights)
        # Below the total even after rounding, so that a token of weight 0 is never drawn.
        point = min(self._random.random() * sums[-1], np.nextafter(sums[-1], 0))
        place = int(np.searchsorted(sums, point, side="right"))
        return place if ids is None else int(ids[place])

    def _candidates(self, logits: F32, top: float) -> tuple[Ids | None, F32]:
        """The tokens that every filter keeps, and their weights: probabilities relative to the likeliest of all.

        Without a filter the ids are None, for all tokens in their order.
        """
        top_k, top_p, min_p = self._options.top_k, self._options.top_p, self._options.min_p
        if 0 < top_k < len(logits):
            ids = likeliest(logits, top_k)
            weights = self._weights(logits[ids], top)
            total = _sum(weights)
        elif top_p == 1 and min_p == 0:
            return None, self._weights(logits, top)
        else:
            total = _sum(self._weights(logits, top)) if top_p < 1 else math.inf
            ids, weights = self._enough_candidates(logits, top, total)
        keep = top_p_count(weights, total, top_p)
        keep = min(keep, min_p_count(weights, min_p))
        return ids[:keep], weights[:keep]

    def _enough_candidates(self, logits: F32, top: float, total: float) -> tuple[Ids, F32]:
        """The likeliest tokens, as many as top-p and min-p may keep, without sorting the whole vocabulary."""
        count = FIRST_CANDIDATES
        while True:
            ids = likeliest(logits, count)
            weights = self._weights(logits[ids], top)
            enough = _sum(weights) >= self._options.top_p * total or weights[-1] < self._options.min_p
            if enough or count >= len(logits):
                return ids, weights
            count *= 16

    def _weights(self, logits: F32, top: float) -> F32:
        """exp of the distance to the highest logit at the temperature: (n,) from 0 to 1."""
        temperature = max(self._options.temperature, _TINIEST_TEMPERATURE)
        with np.errstate(over="ignore"):  # infinitely far away is right
            weights: F32 = np.exp((logits - np.float32(top)) / np.float32(temperature))
        return weights

    def _remember(self, token: int) -> None:
        if self._window == 0:
            return
        self._recent.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        if len(self._recent) > self._window:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if self._counts[oldest] == 0:
                del self._counts[oldest]
