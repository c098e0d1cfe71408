"""The token loop: prefill in chunks, then one token a step until the model, a stop string or a limit ends the reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence

from onhand.backends import Chunk, DecoderRuntime, Logits
from onhand.decoding.detokenizer import Detokenizer
from onhand.decoding.sampling import Sampler
from onhand.decoding.stopping import StopMatcher
from onhand.errors import BusyError, ContextOverflowError, OptionError
from onhand.formats.tokenizer import Tokenizer
from onhand.options import GenerationOptions
from onhand.types import DoneEvent, Event, FinishReason, PrefillEvent, Reply, TextEvent, Usage

PREFILL_CHUNK_TOKENS = 256
"""Most tokens of the prompt in one run of the model; a cancel takes effect within one."""

SLOT = 0


class Completion:
    """Continues token sequences on one slot of a runtime, reusing the KV of the longest prefix that is still there.

    One reply at a time: starting a second one while a stream is open raises BusyError.
    """

    def __init__(
        self, runtime: DecoderRuntime, tokenizer: Tokenizer, *, chunk_tokens: int = PREFILL_CHUNK_TOKENS
    ) -> None:
        self.runtime = runtime
        self.tokenizer = tokenizer
        self._chunk_tokens = chunk_tokens
        self._cached: list[int] = []
        self._busy = threading.Lock()

    def stream(self, prompt: Sequence[int], options: GenerationOptions) -> Generator[Event, None, None]:
        """Continue the prompt. Closing the generator cancels within one run of the model.

        Raises ContextOverflowError, NumericalError, BusyError; after any of them the next reply is as from scratch.
        """
        held = False
        try:
            held = self._busy.acquire(blocking=False)
            if not held:
                raise BusyError
            if not prompt:
                raise OptionError("prompt", "", "at least one token")
            room = self._room(len(prompt), options)
            sampler = Sampler(options, self.tokenizer.size)
            started = time.perf_counter()
            cached_tokens = self._keep_common_prefix(prompt)
            logits = yield from self._prefill(prompt)
            usage = {"prompt_tokens": len(prompt), "cached_tokens": cached_tokens}
            yield from self._decode(logits, sampler, options, room, usage, time.perf_counter() - started)
        finally:
            if held:
                self._busy.release()

    def _room(self, prompt_tokens: int, options: GenerationOptions) -> int:
        """How many tokens may be generated."""
        context = self.runtime.cache.tokens
        wanted = context if options.max_tokens is None else options.max_tokens
        if prompt_tokens + min(wanted, 1) > context:
            raise ContextOverflowError(prompt_tokens, context)
        return min(wanted, context - prompt_tokens)

    def _keep_common_prefix(self, prompt: Sequence[int]) -> int:
        """Cut the cache back to what it shares with the prompt; the last token is always read again, for its logits."""
        shared = 0
        for have, want in zip(self._cached, prompt[:-1], strict=False):
            if have != want:
                break
            shared += 1
        self._truncate(shared)
        return shared

    def _truncate(self, length: int) -> None:
        self.runtime.truncate(SLOT, length)
        del self._cached[length:]

    def _forward(self, tokens: Sequence[int], *, last: bool = True) -> Logits:
        """Append tokens to the slot; whatever happens, `_cached` says what the slot holds."""
        before = len(self._cached)
        try:
            logits = self.runtime.forward([Chunk(slot=SLOT, tokens=tokens, rows="last" if last else "none")])
        except BaseException:
            self._truncate(min(before, self.runtime.length(SLOT)))
            raise
        self._cached.extend(tokens)
        return logits

    def _prefill(self, prompt: Sequence[int]) -> Generator[Event, None, Logits]:
        while True:
            done = len(self._cached)
            end = min(done + self._chunk_tokens, len(prompt))
            logits = self._forward(prompt[done:end], last=end == len(prompt))
            if end == len(prompt):
                return logits
            yield PrefillEvent(end, len(prompt))

    def _decode(
        self,
        logits: Logits,
        sampler: Sampler,
        options: GenerationOptions,
        room: int,
        prompt_usage: dict[str, int],
        prefill_seconds: float,
    ) -> Generator[Event, None, None]:
        detokenizer, stops = Detokenizer(self.tokenizer), StopMatcher(options.stop)
        shown: list[str] = []
        finish: FinishReason = "length"
        generated, seconds, mark = 0, 0.0, time.perf_counter()
        while generated < room:
            token = sampler.sample(logits[-1])
            generated += 1
            ended = token in self.tokenizer.end_ids
            text = stops.feed(detokenizer.finish() if ended else detokenizer.feed(token))
            if text:
                shown.append(text)
                seconds += time.perf_counter() - mark
                yield TextEvent(text)
                mark = time.perf_counter()
            if ended:
                finish = "stop"
            if ended or stops.matched is not None:
                break
            if generated < room:
                logits = self._forward([token])
        tail = "" if stops.matched is not None else stops.feed(detokenizer.finish()) + stops.finish()
        if stops.matched is not None:
            finish = "stop"
        if tail:
            shown.append(tail)
            yield TextEvent(tail)
        usage = Usage(
            **prompt_usage,
            completion_tokens=generated,
            prefill_seconds=prefill_seconds,
            decode_seconds=seconds + time.perf_counter() - mark,
        )
        yield DoneEvent(
            Reply(text="".join(shown), finish_reason=finish, usage=usage, seed=sampler.seed, stop_string=stops.matched)
        )
