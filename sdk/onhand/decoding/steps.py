"""What a step of the engine does: a run for the replies that are being generated, and one for a chunk of a prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence as Ids

from onhand.backends import Chunk, DecoderRuntime, Logits
from onhand.decoding.cuts import Cuts
from onhand.decoding.sequence import Sequence
from onhand.decoding.slots import Slot, forward
from onhand.decoding.speculation import MAX_GUESSES, Guess, PromptLookup, Speculation
from onhand.decoding.window import Window
from onhand.errors import ContextOverflowError, OnhandError


class Pace:
    """How many tokens of a prompt a step reads, by how long a step may take.

    Alone, so that a cancel takes effect within a second or two on the slowest machine; with others, so that those who
    are generating hardly notice. Fewer tokens than LEAST would read the weights for too little.
    """

    ALONE_SECONDS, SHARED_SECONDS, LEAST = 2.0, 0.25, 16
    FIRST = 64

    def __init__(self) -> None:
        self._tokens_per_second: float | None = None

    def took(self, tokens: int, seconds: float) -> None:
        """A chunk of so many tokens took so long."""
        if tokens >= self.LEAST:
            self._tokens_per_second = tokens / max(seconds, 1e-9)

    def tokens(self, most: int, *, alone: bool) -> int:
        """How many tokens the next chunk has."""
        if self._tokens_per_second is None:
            return min(most, self.FIRST)
        seconds = self.ALONE_SECONDS if alone else self.SHARED_SECONDS
        return min(most, max(int(self._tokens_per_second * seconds), self.LEAST))


class Steps:
    """Takes steps. One caller at a time.

    recompute: whether what stays of a full window is read again. chunk_tokens: most tokens of a prompt in one step.
    """

    def __init__(
        self, runtime: DecoderRuntime, window: Window, speculation: Speculation, *, recompute: bool, chunk_tokens: int
    ) -> None:
        self._runtime = runtime
        self._window = window
        self._speculation = speculation
        self._recompute = recompute
        self._chunk_tokens = chunk_tokens
        self._pace = Pace()
        self._count = 0

    def fit(self, sequence: Sequence, slot: Slot, cuts: Cuts) -> None:
        """Bring the slot in line with what is to be cut."""
        if self._recompute:
            slot.cut_back(slot.cuts.first_difference(cuts, len(slot.ids)))
        slot.evict(cuts)
        if cuts != sequence.cuts:
            sequence.report_cuts(cuts)

    def take(self, decoding: list[Sequence], reading: Sequence | None) -> None:
        """One run for those that decode, one for a chunk of a prompt."""
        self._count += 1
        if decoding:
            self._decode(decoding)
        if reading is not None:
            reading.last_step = self._count
            self._read(reading, self._pace.tokens(self._chunk_tokens, alone=not decoding))

    def _decode(self, sequences: list[Sequence]) -> None:
        ready = [sequence for sequence in sequences if self._has_room(sequence)]
        if not ready:
            return
        started = time.perf_counter()
        guess = self._guess(ready[0]) if len(ready) == 1 else None  # rows of other replies pay better than guesses
        guesses = guess.tokens if guess else ()
        chunks = [
            Chunk(slot=s.slot.number, tokens=[s.ids[-1], *guesses], rows="all") for s in ready if s.slot is not None
        ]
        running = time.perf_counter()
        logits = self._forward(chunks, ready)
        if logits is None:
            return
        self._speculation.took(len(logits), time.perf_counter() - running)
        for row, sequence in enumerate(ready):
            self._take(sequence, sequence.ids[-1:])
            self._feed(sequence, logits[row : row + 1 + len(guesses)], guess)
        for sequence in ready:
            sequence.decode_seconds += time.perf_counter() - started

    def _guess(self, sequence: Sequence) -> Guess | None:
        """What may come next, if verifying it promises more tokens per second."""
        if sequence.options.speculate is False or sequence.slot is None:
            return None
        most = min(MAX_GUESSES, sequence.tokens_left - 1, self._window.tokens - sequence.slot.length - 1)
        guess = self._guess_of(sequence, most) if most > 0 else None
        return self._speculation.worth(guess) if guess and not sequence.options.speculate else guess

    def _guess_of(self, sequence: Sequence, most: int) -> Guess | None:
        """What the grammar leaves no choice about, or else the sequence's own guess."""
        if sequence.constraint and (forced := sequence.constraint.forced()):
            return Guess(forced[:most], Speculation.FORCED)
        try:
            return sequence.guesser.guess(sequence.ids, most)
        except OnhandError:  # the small model's failure is none of the large one's
            sequence.guesser = PromptLookup()
            return None

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the reply's next token can be read now: its window slides if it must."""
        slot = sequence.slot
        assert slot is not None
        if slot.length < self._window.tokens:
            return True
        try:
            self.fit(sequence, slot, self._window.make_room(sequence.prompt, len(slot.ids), sequence.cuts))
        except ContextOverflowError:
            sequence.end("length")  # all that could make room is pinned
        except OnhandError as error:
            sequence.error = error
        return sequence.live and sequence.unread_tokens == 1

    def _read(self, sequence: Sequence, most: int) -> None:
        """Read the next chunk of what the slot lacks; choose a token if that was the last."""
        slot, ids = sequence.slot, sequence.ids
        assert slot is not None
        start = sequence.cuts.end_of_cut_at(len(slot.ids))
        slot.append(ids[len(slot.ids) : start], sequence.cuts)
        end = min(start + most, sequence.cuts.start_of_cut_after(start, len(ids)))
        last = end == len(ids)
        started = time.perf_counter()
        chunk = Chunk(slot=slot.number, tokens=ids[start:end], rows="last" if last else "none")
        logits = self._forward([chunk], [sequence])
        if logits is None:
            return
        self._take(sequence, ids[start:end])
        seconds = time.perf_counter() - started
        self._pace.took(end - start, seconds)
        sequence.prefill_seconds += seconds
        if last:
            self._feed(sequence, logits)
        else:
            sequence.report_prefill(end, len(ids))

    def _forward(self, chunks: list[Chunk], sequences: list[Sequence]) -> Logits | None:
        """Run the model; None when it failed, which ends these replies and no other."""
        slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
        try:
            return forward(self._runtime, chunks, slots)
        except OnhandError as error:
            for sequence in sequences:
                sequence.error = error
            return None

    def _take(self, sequence: Sequence, ids: Ids[int]) -> None:
        assert sequence.slot is not None
        sequence.slot.append(ids, sequence.cuts)

    def _feed(self, sequence: Sequence, logits: Logits, guess: Guess | None = None) -> None:
        """Choose tokens from the rows; keep what the model read of the right guesses, forget the wrong ones."""
        slot, right = sequence.slot, 0
        assert slot is not None
        try:
            right = sequence.feed(logits, guess.tokens if guess else ())
        except OnhandError as error:
            sequence.error = error
        if guess:
            self._runtime.truncate(slot.number, slot.length + right)
            slot.append(guess.tokens[:right], sequence.cuts)
            self._speculation.verified(guess, right)
        if sequence.error is not None:
            slot.cut_back(0)  # numbers that are none would spoil every later reply
