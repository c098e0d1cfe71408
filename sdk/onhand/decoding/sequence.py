"""One reply in progress: the tokens it has and wants, and the events it has for whoever asked."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Ids

from onhand.backends import Logits
from onhand.decoding.constraints import Constraint
from onhand.decoding.cuts import Cuts
from onhand.decoding.detokenizer import Detokenizer
from onhand.decoding.sampling import Sampler
from onhand.decoding.slots import Slot
from onhand.decoding.speculation import Guesser
from onhand.decoding.stopping import StopMatcher
from onhand.decoding.window import Prompt
from onhand.formats.tokenizer import Tokenizer
from onhand.options import GenerationOptions
from onhand.prompts.replies import Piece, ReplyReader, Shape
from onhand.types import (
    DoneEvent,
    Event,
    EvictedEvent,
    FinishReason,
    PrefillEvent,
    Reply,
    TextEvent,
    ThinkingEvent,
    ToolCall,
    Usage,
)

RUN_AHEAD_EVENTS = 16
"""How far a reply may be ahead of its reader, who may be slow; without room to run ahead, others would wait for him."""


class Sequence:
    """ids: the prompt's, then those that were generated; the last of them is always still to be read by the model.

    slot: where it is read, None while it waits for one. cuts: what is out of the model's sight. last_step: the number
    of the step that read a chunk of it last. Changed by whoever takes the step, `events` also by its reader.
    """

    def __init__(
        self,
        prompt: Prompt,
        options: GenerationOptions,
        tokenizer: Tokenizer,
        guesser: Guesser,
        max_tokens: float,
        cancel: threading.Event | None = None,
        constraint: Constraint | None = None,
        shape: Shape | None = None,
    ) -> None:
        self.prompt = prompt
        self.options = options
        self.ids: list[int] = list(prompt.ids)
        self.cuts = Cuts()
        self.slot: Slot | None = None
        self.last_step = 0
        self.events: deque[Event] = deque()
        self.error: BaseException | None = None
        self.ended = False
        self.cached_tokens: int | None = None  # of its prompt, when it got its first slot
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.readers = 0  # threads that wait for an event of this sequence
        self.left_at = time.monotonic()  # when the last of them went
        self.guesser = guesser
        self._guessed_tokens = 0
        self._max_tokens = max_tokens
        self._cancel = cancel
        self.constraint = constraint
        self._deadline = None if options.deadline_seconds is None else self.left_at + options.deadline_seconds
        shape = shape or Shape()
        control = tokenizer.scaffold_tokens
        self._end_ids = tokenizer.end_ids | {control[text] for text in shape.ends if text in control}
        self._sampler = Sampler(options, tokenizer.size, constraint)
        self._detokenizer = Detokenizer(tokenizer, {control[text]: text for text in shape.markers if text in control})
        self.reader = ReplyReader(shape)
        self._stops = StopMatcher(options.stop)
        self._shown: list[str] = []
        self._thought: list[str] = []
        self._calls: list[ToolCall] = []
        self._evicted_tokens = 0

    @property
    def generated(self) -> int:
        """How many tokens the model chose."""
        return len(self.ids) - len(self.prompt.ids)

    @property
    def tokens_left(self) -> int:
        """How many more tokens may be generated; very many where there is no limit."""
        return int(min(self._max_tokens - self.generated, sys.maxsize))

    @property
    def live(self) -> bool:
        """Whether it is to go on: neither ended nor failed."""
        return not self.ended and self.error is None

    @property
    def wants_to_run(self) -> bool:
        """Whether its reader is not too far behind."""
        return self.live and len(self.events) < RUN_AHEAD_EVENTS

    @property
    def unread_tokens(self) -> int:
        """How many of its ids the slot does not hold yet, cuts not counted."""
        read = 0 if self.slot is None else len(self.slot.ids)
        return self.cuts.count(read, len(self.ids))

    def unattended_seconds(self) -> float:
        """For how long nobody has waited for it."""
        return 0.0 if self.readers else time.monotonic() - self.left_at

    def end_if_asked_to(self) -> None:
        """End it where it is when it was cancelled, or its deadline has passed."""
        if not self.live:
            return
        if self._cancel is not None and self._cancel.is_set():
            self.end("cancelled")
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self.end("deadline")

    def feed(self, rows: Logits, guesses: Ids[int] = ()) -> int:
        """Choose the next tokens: one for each row, as long as each is the guess that the next row was computed for.

        rows: (len(guesses) + 1, vocab). Returns how many of the guesses were right: the runtime holds them by right.
        """
        if self._max_tokens == 0:
            self.end("length")
            return 0
        for right, row in enumerate(rows):
            token = self._sampler.sample(row)
            self.ids.append(token)
            self._show(token)
            if self.ended or right == len(guesses) or token != guesses[right]:
                return right
            self._guessed_tokens += 1
        return len(guesses)

    def _show(self, token: int) -> None:
        ended = token in self._end_ids
        self._take(self.reader.feed(self._detokenizer.finish() if ended else self._detokenizer.feed(token)))
        whole = self.constraint is not None and self.constraint.complete
        if ended or whole or self._stops.matched is not None:
            self.end("stop")
        elif self.generated >= self._max_tokens:
            self.end("length")

    def _take(self, pieces: Iterable[Piece]) -> None:
        """Stop strings end what is said; what is thought or called by then has been."""
        for piece in pieces:
            if self._stops.matched is not None:
                return
            if isinstance(piece, TextEvent):
                self._say(self._stops.feed(piece.text))
                continue
            if isinstance(piece, ThinkingEvent):
                self._thought.append(piece.text)
            else:
                self._say(self._stops.finish())
                self._calls.append(piece.call)
            self.events.append(piece)

    def _say(self, text: str) -> None:
        if text:
            self._shown.append(text)
            self.events.append(TextEvent(text))

    def end(self, reason: FinishReason) -> None:
        """The last words, and the event that ends the stream."""
        if self._stops.matched is None:
            self._take(self.reader.feed(self._detokenizer.finish()))
            self._take(self.reader.finish(cut=reason != "stop"))
        if self._stops.matched is None:
            self._say(self._stops.finish())
        if self._stops.matched is not None:
            reason = "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        usage = Usage(
            prompt_tokens=len(self.prompt.ids),
            completion_tokens=self.generated,
            cached_tokens=self.cached_tokens or 0,
            evicted_tokens=self._evicted_tokens,
            guessed_tokens=self._guessed_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
        )
        reply = Reply(
            text="".join(self._shown),
            finish_reason=reason,
            usage=usage,
            seed=self._sampler.seed,
            stop_string=self._stops.matched,
            thinking="".join(self._thought),
            tool_calls=tuple(self._calls),
            problem=self.reader.problem,
        )
        self.ended = True
        self.events.append(DoneEvent(reply))

    def report_prefill(self, done_tokens: int, total_tokens: int) -> None:
        """Tell how much of the prompt is read, unless its reader is behind with what he was told before."""
        if not self.events:
            self.events.append(PrefillEvent(done_tokens, total_tokens))

    def report_cuts(self, cuts: Cuts) -> None:
        """Take over new cuts, and tell which messages are now out of the model's sight."""
        self._evicted_tokens += cuts.total - self.cuts.total
        self.cuts = cuts
        if cuts.total:
            self.events.append(EvictedEvent(_unseen(self.prompt, cuts), cuts.total))


def _unseen(prompt: Prompt, cuts: Cuts) -> tuple[int, ...]:
    """The messages of which the model sees nothing any more."""
    ends = [(turn.start, turn.first_message) for turn in prompt.turns[1:]]
    ends.append((len(prompt.ids), prompt.messages))
    unseen: list[int] = []
    for turn, (end, following) in zip(prompt.turns, ends, strict=False):
        if cuts.count(turn.start, end) == 0:
            unseen += range(turn.first_message, following)
    return tuple(unseen)
