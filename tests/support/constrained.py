"""A model that says anything that its grammar allows, with equal chances, and comes to an end."""

from __future__ import annotations

import numpy as np

from onhand.decoding.constraints import Constraint
from onhand.formats.tokenizer import Tokenizer

ENDING = '"}],: '
"""What is preferred, in this order behind the end itself, once a text is long enough."""


def babble(constraint: Constraint, tokenizer: Tokenizer, seed: int, *, free_tokens: int = 30) -> str:
    """A text of the grammar, at random. Fails where that finds no end."""
    random_numbers = np.random.default_rng(seed)
    ends = [*sorted(tokenizer.end_ids), *(tokenizer.encode(character)[0] for character in ENDING)]
    ids: list[int] = []
    while not constraint.complete and len(ids) < 1000:
        allowed = np.flatnonzero(np.isfinite(constraint.allowed(np.zeros(tokenizer.size, np.float32))))
        ending = [token for token in ends if token in allowed] if len(ids) >= free_tokens else []
        token = ending[0] if ending else int(random_numbers.choice(allowed))
        constraint.take(token)
        if token in tokenizer.end_ids:
            return tokenizer.decode(ids)
        ids.append(token)
    assert len(ids) < 1000, tokenizer.decode(ids)[:200]
    return tokenizer.decode(ids)
