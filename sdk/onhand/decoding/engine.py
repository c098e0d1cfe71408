"""The scheduler: many replies at once on the slots of one runtime.

No thread of its own: whoever waits for an event of a reply takes the next step for all replies, unless another does
already. So one reply alone costs no hand-over between threads, nothing runs when nobody waits, and an interrupt reaches
the one who is at work.

A step is one run for the replies that are being generated, each a token further (or more, where guesses were right),
and one for a chunk of one prompt, so that a long prompt holds up nobody for longer than a chunk takes. Prompts take
turns.

Slots are a cache and not a possession. A reply that nobody waits for loses its slot to one that waits for a slot, and
reads its tokens again when it goes on: so replies that are left open never block others.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from collections.abc import Sequence as Ids

from onhand.backends import Chunk, DecoderRuntime, Logits
from onhand.decoding.cuts import Cuts
from onhand.decoding.draft import DraftModel, LookupThenDraft
from onhand.decoding.sequence import Sequence
from onhand.decoding.slots import Slot, choose, forward
from onhand.decoding.speculation import MAX_GUESSES, Guess, Guesser, PromptLookup, Speculation
from onhand.decoding.window import Prompt, Window
from onhand.errors import ContextOverflowError, OnhandError, OptionError, QueueFullError
from onhand.formats.tokenizer import Tokenizer
from onhand.options import CacheOptions, GenerationOptions
from onhand.types import DoneEvent, Event

PREFILL_CHUNK_TOKENS = 256
"""Most tokens of a prompt in one step; a cancel takes effect within one."""

MAX_WAITING = 64
"""Most replies that may wait for a slot."""

UNATTENDED_SECONDS = 0.1
"""A reply that nobody waited for so long can lose its slot."""


class Engine:
    """Continues prompts on a runtime. Any number of threads may stream from it; the runtime is used by one at a time.

    runtime, draft: closed with the engine. cache: sinks, block and what is done when a window is full.
    draft: a small model of the same tokenizer, which guesses. guesser: makes what guesses for one reply, in its stead.
    """

    def __init__(
        self,
        runtime: DecoderRuntime,
        tokenizer: Tokenizer,
        cache: CacheOptions | None = None,
        *,
        draft: DecoderRuntime | None = None,
        guesser: Callable[[], Guesser] | None = None,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.cache = cache or CacheOptions()
        self.window = Window.of(self.cache, runtime.cache.tokens)
        self.slots = [Slot(runtime, number) for number in range(runtime.cache.slots)]
        self._chunk_tokens = chunk_tokens
        self._changed = threading.Condition()
        self._stepping = False
        self._sequences: list[Sequence] = []  # in the order in which they came
        self._max_waiting = max_waiting
        self._draft = draft
        self._speculation = Speculation()
        self._guesser = guesser or _guessers(draft, self._speculation)
        self._uses = 0
        self._steps = 0

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Event, None, None]:
        """Continue the prompt. Closing the generator cancels within one step.

        Raises ContextOverflowError, NumericalError, QueueFullError, OptionError, BackendError; the other replies go on.
        """
        sequence = self._enter(prompt, options)
        try:
            while True:
                event = self._next_event(sequence)
                if isinstance(event, DoneEvent):
                    self._leave(sequence)
                yield event
                if isinstance(event, DoneEvent):
                    return
        finally:
            self._leave(sequence)

    def close(self) -> None:
        """Give back memory and threads. Closing twice is allowed."""
        self.runtime.close()
        if self._draft is not None:
            self._draft.close()

    def _enter(self, prompt: Prompt, options: GenerationOptions) -> Sequence:
        if not prompt.ids:
            raise OptionError("prompt", "", "at least one token")
        max_tokens = math.inf if options.max_tokens is None else options.max_tokens
        if self.cache.overflow == "error":
            room = self.window.tokens - len(prompt.ids)
            if room < min(max_tokens, 1):
                raise ContextOverflowError(len(prompt.ids), self.window.tokens)
            max_tokens = min(max_tokens, room)
        sequence = Sequence(prompt, options, self.tokenizer, self._guesser(), max_tokens)
        with self._changed:
            waiting = sum(other.slot is None for other in self._sequences)
            if waiting >= self._max_waiting:
                raise QueueFullError(waiting, self._max_waiting)
            self._sequences.append(sequence)
        return sequence

    def _leave(self, sequence: Sequence) -> None:
        with self._changed:
            if sequence in self._sequences:
                sequence.ended = True
                self._sequences.remove(sequence)
                self._changed.notify_all()

    def _next_event(self, sequence: Sequence) -> Event:
        """Wait for an event, stepping when nobody else is."""
        with self._changed:
            sequence.readers += 1
        try:
            while True:
                with self._changed:
                    while True:
                        if sequence.events:
                            return sequence.events.popleft()
                        if sequence.error is not None:
                            raise sequence.error
                        if not self._stepping and (chosen := self._choose_work()):
                            self._stepping = True
                            break
                        if sequence.live:
                            self._changed.wait(UNATTENDED_SECONDS)
                try:
                    self._step(*chosen)
                finally:
                    with self._changed:
                        self._stepping = False
                        self._changed.notify_all()
        finally:
            with self._changed:
                sequence.readers -= 1
                sequence.left_at = time.monotonic()

    def _choose_work(self) -> tuple[list[Sequence], Sequence | None] | None:
        """Those that the next step takes a token further, and the one of whose prompt it reads a chunk; None for idle.

        Slots are given and taken here, in the order of coming.
        """
        for sequence in self._sequences:
            if sequence.overdue():
                sequence.end("deadline")
        self._sequences = [sequence for sequence in self._sequences if sequence.live]
        for sequence in self._sequences:
            if sequence.slot is None and sequence.wants_to_run and not self._give_slot(sequence):
                break
        running = [s for s in self._sequences if s.slot is not None and s.wants_to_run]
        decoding = [sequence for sequence in running if sequence.unread_tokens == 1]
        reading = [sequence for sequence in running if sequence.unread_tokens > 1]
        if not running:
            return None
        return decoding, min(reading, key=lambda sequence: sequence.last_step, default=None)

    def _give_slot(self, sequence: Sequence) -> bool:
        """Give a waiting reply a slot that is free, or held by a reply that nobody waits for. False: it waits on."""
        holders = {other.slot.number: other for other in self._sequences if other.slot is not None}
        free = {slot.number for slot in self.slots} - set(holders)
        if not free:
            unattended = [other for other in holders.values() if other.unattended_seconds() > UNATTENDED_SECONDS]
            if not unattended:
                return False
            loser = max(unattended, key=lambda other: other.unattended_seconds())
            assert loser.slot is not None
            free = {loser.slot.number}
            loser.slot = None
        slot = choose(self.slots, free, sequence.ids)
        self._uses += 1
        slot.used = self._uses
        try:
            self._fit(sequence, slot, self._cuts_of(sequence, slot))
        except OnhandError as error:
            sequence.error = error
            return True
        sequence.slot = slot
        sequence.cached_tokens = slot.length
        return True

    def _cuts_of(self, sequence: Sequence, slot: Slot) -> Cuts:
        """What must be out of sight for the whole of a reply that begins, or begins anew, to be read."""
        cuts = sequence.cuts.union(slot.cuts)
        if self.cache.overflow == "error":
            return cuts
        cuts = self.window.fit_prompt(sequence.prompt, cuts)
        if len(sequence.ids) - cuts.total > self.window.tokens:
            cuts = self.window.make_room(sequence.prompt, len(sequence.ids), cuts)
        return cuts

    def _fit(self, sequence: Sequence, slot: Slot, cuts: Cuts) -> None:
        """Bring the slot in line with what is to be cut."""
        if self.cache.overflow == "recompute":
            slot.cut_back(slot.cuts.first_difference(cuts, len(slot.ids)))
        slot.evict(cuts)
        if cuts != sequence.cuts:
            sequence.report_cuts(cuts)

    def _step(self, decoding: list[Sequence], reading: Sequence | None) -> None:
        """One run for those that decode, one for a chunk of a prompt."""
        self._steps += 1
        if decoding:
            self._decode(decoding)
        if reading is not None:
            reading.last_step = self._steps
            self._read(reading, self._chunk_tokens)

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
        most = min(MAX_GUESSES, sequence.tokens_left - 1, self.window.tokens - sequence.slot.length - 1)
        guess = sequence.guesser.guess(sequence.ids, most) if most > 0 else None
        return self._speculation.worth(guess) if guess and not sequence.options.speculate else guess

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the reply's next token can be read now: its window slides if it must."""
        slot = sequence.slot
        assert slot is not None
        if slot.length < self.window.tokens:
            return True
        try:
            self._fit(sequence, slot, self.window.make_room(sequence.prompt, len(slot.ids), sequence.cuts))
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
        sequence.prefill_seconds += time.perf_counter() - started
        if last:
            self._feed(sequence, logits)
        else:
            sequence.report_prefill(end, len(ids))

    def _forward(self, chunks: list[Chunk], sequences: list[Sequence]) -> Logits | None:
        """Run the model; None when it failed, which ends these replies and no other."""
        slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
        try:
            return forward(self.runtime, chunks, slots)
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
            self.runtime.truncate(slot.number, slot.length + right)
            slot.append(guess.tokens[:right], sequence.cuts)
            self._speculation.verified(guess, right)
        if sequence.error is not None:
            slot.cut_back(0)  # numbers that are none would spoil every later reply


def _guessers(draft: DecoderRuntime | None, speculation: Speculation) -> Callable[[], Guesser]:
    if draft is None:
        return PromptLookup
    model = DraftModel(draft, speculation)
    return lambda: LookupThenDraft(model)
