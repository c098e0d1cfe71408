"""A small model that guesses for a large one of the same tokenizer (speculative decoding, Leviathan et al. 2023)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from onhand.backends import Chunk, DecoderRuntime
from onhand.decoding.slots import Slot, forward
from onhand.decoding.speculation import MAX_GUESSES, Guess, PromptLookup, Speculation


class DraftModel:
    """Guesses what the small model would say greedily.

    One for all replies of an engine: it reads on where it stands. runtime: of the small model, one slot of it is used.
    speculation: by which it decides how many guesses to make. vocab_size: of the tokenizer.
    """

    def __init__(self, runtime: DecoderRuntime, speculation: Speculation, vocab_size: int) -> None:
        self._slot = Slot(runtime, 0)
        self._speculation = speculation
        self._vocab_size = vocab_size
        self._seconds = 0.0

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        """The small model's next tokens, as many as promise to pay."""
        count = self._speculation.length(Speculation.DRAFTED, most, self._seconds)
        if not count:
            return None
        runtime, slot = self._slot.runtime, self._slot
        text = list(ids[_first_read(len(ids), runtime.cache.tokens) :])
        slot.cut_back(slot.shared(text))
        tokens: list[int] = []
        unread = text[len(slot.ids) :]
        while len(tokens) < count:
            started = time.perf_counter()
            logits = forward(runtime, [Chunk(slot=slot.number, tokens=unread)], [slot])
            slot.append(unread, slot.cuts)
            if len(unread) == 1:
                self._seconds = self._seconds or time.perf_counter() - started
                self._seconds += 0.1 * (time.perf_counter() - started - self._seconds)
            tokens.append(int(logits[-1, : self._vocab_size].argmax()))
            unread = tokens[-1:]
        return Guess(tokens, Speculation.DRAFTED)


class LookupThenDraft:
    """What a repetition suggests; where there is none, what the small model does."""

    def __init__(self, draft: DraftModel) -> None:
        self._lookup, self._draft = PromptLookup(), draft

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        """A guess of either."""
        return self._lookup.guess(ids, most) or self._draft.guess(ids, most)


def _first_read(length: int, window: int) -> int:
    """From where on a small model whose window is too small for all reads: it moves in steps, to read little again."""
    room = window - MAX_GUESSES
    if length <= room:
        return 0
    step = max(room // 2, 1)
    return -(-(length - room) // step) * step
