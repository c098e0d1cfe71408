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
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager
from pathlib import Path

from onhand.backends import DecoderRuntime
from onhand.decoding.constraints import Grammars
from onhand.decoding.cuts import Cuts
from onhand.decoding.draft import DraftModel, LookupThenDraft
from onhand.decoding.kv_files import cache_key, read_kv, write_kv
from onhand.decoding.sequence import Sequence
from onhand.decoding.slots import Slot, choose, fullest, unused_longest
from onhand.decoding.speculation import Guesser, PromptLookup, Speculation
from onhand.decoding.steps import Steps
from onhand.decoding.window import Prompt, Window
from onhand.errors import CacheFileError, ContextOverflowError, OnhandError, OptionError, QueueFullError, StorageError
from onhand.formats.package import write_whole
from onhand.formats.tokenizer import Tokenizer
from onhand.options import CacheOptions, GenerationOptions
from onhand.prompts.replies import Shape
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
    Raises OptionError for a window that cannot slide as it is asked to.
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
        if self.cache.overflow == "slide" and not runtime.cache.slides:
            cannot = f"recompute or error: the {runtime.spec.architecture} model's window cannot slide on this device"
            raise OptionError("overflow", "slide", cannot)
        self.window = Window.of(self.cache, runtime.cache.tokens)
        self.slots = [Slot(runtime, number) for number in range(runtime.cache.slots)]
        self._changed = threading.Condition()
        self._stepping = False
        self._claims = 0  # threads that want the runtime when the step has ended
        self._sequences: list[Sequence] = []  # in the order in which they came
        self._max_waiting = max_waiting
        self._draft = draft
        speculation = Speculation()
        self._grammars = Grammars(tokenizer)
        self._guesser = guesser or _guessers(draft, speculation, tokenizer.size)
        self._steps = Steps(
            runtime,
            self.window,
            speculation,
            recompute=self.cache.overflow == "recompute",
            chunk_tokens=chunk_tokens,
        )
        self._uses = 0

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions,
        cancel: threading.Event | None = None,
        shape: Shape | None = None,
    ) -> Generator[Event, None, None]:
        """Continue the prompt. Closing the generator cancels within one step; so does `cancel`, set by any thread.

        shape: what may stand in the reply; None for text.

        Raises ContextOverflowError, GrammarError, NumericalError, QueueFullError, OptionError, BackendError; the other
        replies go on.
        """
        sequence = self._enter(prompt, options, cancel, shape)
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
        """Give back memory and threads, when the step in progress has ended. Closing twice is allowed.

        Replies in progress end with BackendError, and so does whatever is asked later.
        """
        with self._between_steps():
            for slot in self.slots:
                slot.forget()
            self.runtime.close()
            if self._draft is not None:
                self._draft.close()

    def _enter(
        self, prompt: Prompt, options: GenerationOptions, cancel: threading.Event | None, shape: Shape | None
    ) -> Sequence:
        if not prompt.ids:
            raise OptionError("prompt", "", "at least one token")
        max_tokens = math.inf if options.max_tokens is None else options.max_tokens
        if self.cache.overflow == "error":
            room = self.window.tokens - len(prompt.ids)
            if room < min(max_tokens, 1):
                raise ContextOverflowError(len(prompt.ids), self.window.tokens)
            max_tokens = min(max_tokens, room)
        constraint = None if options.grammar is None else self._grammars.constraint(options.grammar)
        sequence = Sequence(prompt, options, self.tokenizer, self._guesser(), max_tokens, cancel, constraint, shape)
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
                        if not self._stepping and not self._claims and (chosen := self._choose_work()):
                            self._stepping = True
                            break
                        if sequence.live:
                            self._changed.wait(UNATTENDED_SECONDS)
                try:
                    self._steps.take(*chosen)
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
            sequence.end_if_asked_to()
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
        whole = not sequence.cuts.total and len(sequence.ids) <= self.window.tokens
        slot = choose(self.slots, free, sequence.ids, whole=whole)
        self._uses += 1
        slot.used = self._uses
        try:
            self._steps.fit(sequence, slot, self._cuts_of(sequence, slot))
        except OnhandError as error:
            sequence.error = error
            return True
        sequence.slot = slot
        if sequence.cached_tokens is None:
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

    def save(self, ids: Ids[int], path: Path, model: str = "") -> None:
        """Write to a file what a slot holds of these ids, for `load`. model: the sha256 of the weights.

        Waits for the step in progress; other replies wait meanwhile. Raises StorageError, CacheFileError when no slot
        holds anything of them, BackendError; then there is no new file, and what was there before stays.
        """

        def write(part: Path) -> None:
            with self._between_steps():
                slot = fullest(self.slots, ids)
                index = slot.known(ids)
                cuts = slot.cuts.until(index)
                if index == cuts.total:
                    raise CacheFileError(path, "not held", "the model holds nothing of this conversation")
                write_kv(
                    part,
                    self._cache_key(model),
                    self.runtime.spec,
                    slot.ids[:index],
                    cuts,
                    self.runtime.export(slot.number),
                )

        try:
            write_whole(path, write)
        except OSError as error:
            if isinstance(error, OnhandError):
                raise
            raise StorageError(f"the cache cannot be written to {path}: {error.strerror or error}") from error

    def load(self, path: Path, model: str = "") -> int:
        """Hold again what `save` wrote, for the next prompt that begins with these ids; how many tokens that spares.

        Takes a slot that no reply uses, what was unused longest first. Raises CacheFileError, BackendError.
        """
        key = self._cache_key(model)
        with read_kv(path, key, self.runtime.spec, self.window.tokens) as file, self._between_steps():
            slot = next((slot for slot in self.slots if slot.holds(file.ids, file.cuts)), None)
            if slot is None:
                taken = {sequence.slot.number for sequence in self._sequences if sequence.slot is not None}
                free = {slot.number for slot in self.slots} - taken
                if not free:
                    raise CacheFileError(path, "busy", "replies in progress use every slot")
                slot = unused_longest(self.slots, free)
                slot.restore(file.ids, file.cuts, file.layers)
            self._uses += 1
            slot.used = self._uses
            return file.tokens

    def _cache_key(self, model: str) -> bytes:
        return cache_key(model, self.tokenizer, self.runtime.spec, self.window.tokens, self.cache.overflow)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """The runtime and the slots to oneself: from the end of the step in progress on, before the next begins."""
        with self._changed:
            self._claims += 1
            try:
                while self._stepping:
                    self._changed.wait()
                self._stepping = True
            finally:
                self._claims -= 1
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()


def _guessers(draft: DecoderRuntime | None, speculation: Speculation, vocab_size: int) -> Callable[[], Guesser]:
    if draft is None:
        return PromptLookup
    model = DraftModel(draft, speculation, vocab_size)
    return lambda: LookupThenDraft(model)
