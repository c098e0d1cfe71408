"""What tests of apps and of third-party backends need: a scripted runtime, and the contract of every backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from onhand.backends import Batch, CacheShape, Chunk, DecoderRuntime, LayerKv, Logits
from onhand.errors import BackendError, ContextOverflowError, OptionError
from onhand.formats.spec import DecoderSpec, LayerSpec, RopeSpec
from onhand.runtime_checks import (
    check_batch,
    check_eviction,
    check_restoring,
    check_slot,
    check_truncation,
    checked_layers,
)

Step = int | npt.NDArray[np.float32] | Exception
"""What a scripted runtime answers for one row: the id that shall win, whole logits (vocab,), or an error to raise."""


class ScriptedRuntime:
    """A DecoderRuntime that answers from a script, one step for each row of logits that is asked for.

    Used to test everything above a runtime without a model. After the script's end every row gives `end_id`;
    answers to guesses that were wrong are given once more.
    held: the tokens in each slot. forwarded: how many tokens each chunk of each call brought.
    """

    def __init__(
        self, script: Iterable[Step], *, vocab_size: int, end_id: int, context_tokens: int = 4096, slots: int = 1
    ) -> None:
        self.spec = _spec(vocab_size, context_tokens)
        self.cache = CacheShape(slots=slots, tokens=context_tokens, bytes_per_token=self.spec.kv_values_per_token * 4)
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.forwarded: list[int] = []
        self._script = iter(script)
        self._answered: dict[int, list[Step]] = {}  # what each slot was last answered, where it brought several tokens
        self._again: list[Step] = []
        self._end_id = end_id
        self._closed = False

    def forward(self, batch: Batch) -> Logits:
        """Append tokens; answer from the script."""
        if self._closed:
            raise BackendError("scripted", "the model was closed")
        check_batch(batch, self.spec, self.cache, self._lengths)
        rows = []
        for chunk in batch:
            wanted = {"none": 0, "last": 1, "all": len(chunk.tokens)}[chunk.rows]
            steps = [self._next() for _ in range(wanted)]
            self._answered[chunk.slot] = steps if wanted > 1 else []
            rows += [self._logits(step) for step in steps]
            self.held[chunk.slot].extend(chunk.tokens)
            self.forwarded.append(len(chunk.tokens))
        return np.stack(rows) if rows else np.empty((0, self.spec.vocab_size), np.float32)

    def length(self, slot: int) -> int:
        """How many tokens the slot holds."""
        check_slot(slot, self.cache)
        return len(self.held[slot])

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the slot's first `length` tokens."""
        check_truncation(slot, length, self.cache, self._lengths)
        steps, forgotten = self._answered.pop(slot, []), len(self.held[slot]) - length
        if 0 < forgotten < len(steps):  # wrong guesses, whose answers nobody took
            self._again = steps[len(steps) - forgotten :] + self._again
        del self.held[slot][length:]

    def evict(self, slot: int, first: int, count: int) -> None:
        """Forget tokens in the middle."""
        check_eviction(slot, first, count, self.cache, self._lengths)
        del self.held[slot][first : first + count]

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the target hold the source's first `length` tokens."""
        check_slot(target, self.cache)
        check_truncation(source, length, self.cache, self._lengths)
        self.held[target] = self.held[source][:length]

    def export(self, slot: int) -> Iterator[LayerKv]:
        """Keys and values that spell the tokens' ids in digits, which survive being rounded to 8 bits a value."""
        if self._closed:
            raise BackendError("scripted", "the model was closed")
        check_slot(slot, self.cache)
        digits = (np.array(self.held[slot], np.int64)[None, :, None] // _DIGITS % 128).astype(np.float32)
        return iter([(digits[..., :2], digits[..., 2:])])

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        """Hold the tokens whose ids these keys and values spell."""
        if self._closed:
            raise BackendError("scripted", "the model was closed")
        check_restoring(slot, tokens, self.cache)
        self.held[slot] = []
        for keys, values in checked_layers(layers, self.spec, tokens):
            digits = np.rint(np.concatenate([keys[0], values[0]], axis=-1).clip(0, 127)).astype(np.int64)
            held = (digits * _DIGITS).sum(axis=-1).tolist()
        self.held[slot] = held

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True

    @property
    def _lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.held]

    def _next(self) -> Step:
        return self._again.pop(0) if self._again else next(self._script, self._end_id)

    def _logits(self, step: Step) -> npt.NDArray[np.float32]:
        if isinstance(step, Exception):
            raise step
        if isinstance(step, np.ndarray):
            return step
        logits = np.zeros(self.spec.vocab_size, np.float32)
        logits[step] = 100.0
        return logits


_DIGITS = 128 ** np.arange(4)


def _spec(vocab_size: int, context_tokens: int) -> DecoderSpec:
    rope = RopeSpec(base=10_000.0, dimensions=2, interleaved=False)
    return DecoderSpec(
        architecture="scripted",
        vocab_size=vocab_size,
        hidden_size=2,
        ffn_size=2,
        heads=1,
        kv_heads=1,
        head_size=2,
        context_tokens=context_tokens,
        norm_epsilon=1e-5,
        layers=(LayerSpec(rope=rope),),
        attention_scale=1.0,
    )


class BackendContract(ABC):
    """What every DecoderRuntime must do; pytest runs it from a subclass that says how to open one.

        class TestMyBackend(BackendContract):
            def open_runtime(self) -> DecoderRuntime:
                return my_backend.load(...)

    open_runtime: a new runtime, empty, of a model with at least 20 tokens of vocabulary and 64 of context; its context
    should be small, for one test fills it. tolerance: the largest difference of logits between one way of cutting a
    prompt and another, as a share of their range; a backend that multiplies in int8 rounds differently by chunk.
    """

    tolerance = 1e-3
    prompt: Sequence[int] = (3, 17, 5, 11, 2, 19, 7, 7, 13, 1, 4, 16)

    @abstractmethod
    def open_runtime(self) -> DecoderRuntime:
        """A new, empty runtime."""

    def _logits(self, runtime: DecoderRuntime, tokens: Sequence[int]) -> Logits:
        return runtime.forward([Chunk(slot=0, tokens=tokens, rows="all")]).copy()

    def _assert_close(self, found: Logits, expected: Logits) -> None:
        assert found.shape == expected.shape
        span = float(expected.max() - expected.min())
        assert float(np.abs(found - expected).max()) <= self.tolerance * span

    def test_logits_are_finite_float32_one_row_a_token(self) -> None:
        """Shape, type and numbers."""
        runtime = self.open_runtime()
        logits = self._logits(runtime, self.prompt)
        assert logits.shape == (len(self.prompt), runtime.spec.vocab_size)
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()
        runtime.close()

    def test_any_chunking_gives_the_logits_of_one_chunk(self) -> None:
        """Chunks of 1, 2 and 5 tokens."""
        runtime = self.open_runtime()
        expected = self._logits(runtime, self.prompt)
        for size in (1, 2, 5):
            runtime.truncate(0, 0)
            cuts = range(0, len(self.prompt), size)
            found = np.concatenate([self._logits(runtime, self.prompt[cut : cut + size]) for cut in cuts])
            self._assert_close(found, expected)
        runtime.close()

    def test_rows_are_those_asked_for(self) -> None:
        """Rows none, last and all."""
        runtime = self.open_runtime()
        expected = self._logits(runtime, self.prompt)
        runtime.truncate(0, 0)
        assert len(runtime.forward([Chunk(slot=0, tokens=self.prompt[:4], rows="none")])) == 0
        self._assert_close(runtime.forward([Chunk(slot=0, tokens=self.prompt[4:])]), expected[-1:])
        runtime.close()

    def test_what_was_truncated_leaves_no_trace(self) -> None:
        """Truncate, append other tokens: as if the first had never been."""
        runtime = self.open_runtime()
        expected = self._logits(runtime, self.prompt)
        runtime.truncate(0, 4)
        self._logits(runtime, [9, 9, 9, 9, 9, 9, 9, 9, 9, 9])
        runtime.truncate(0, 4)
        assert runtime.length(0) == 4
        self._assert_close(self._logits(runtime, self.prompt[4:]), expected[4:])
        runtime.close()

    def test_a_context_can_be_filled_to_its_last_token_and_no_further(self) -> None:
        """The refusal has both numbers and changes nothing."""
        runtime = self.open_runtime()
        limit = runtime.cache.tokens
        for first in range(0, limit, 64):
            runtime.forward([Chunk(slot=0, tokens=[5] * min(64, limit - first))])
        _refused(ContextOverflowError, lambda: runtime.forward([Chunk(slot=0, tokens=[5])]))
        assert runtime.length(0) == limit
        runtime.truncate(0, limit - 1)
        assert len(runtime.forward([Chunk(slot=0, tokens=[5])])) == 1
        runtime.close()

    def test_evicting_what_comes_last_is_truncating(self) -> None:
        """And what stays before it is as it was."""
        runtime = self.open_runtime()
        expected = self._logits(runtime, self.prompt)
        if runtime.cache.slides:
            self._logits(runtime, [9, 9, 9])
            runtime.evict(0, 6, len(self.prompt) + 3 - 6)
            assert runtime.length(0) == 6
            self._assert_close(self._logits(runtime, self.prompt[6:]), expected[6:])
        runtime.close()

    def test_eviction_makes_room_as_often_as_it_is_asked_for(self) -> None:
        """Numbers stay numbers, and tokens that were never evicted give what they gave."""
        runtime = self.open_runtime()
        expected = self._logits(runtime, self.prompt)[:4]
        limit = runtime.cache.tokens
        for _ in range(8 if runtime.cache.slides else 0):
            runtime.forward([Chunk(slot=0, tokens=[5] * (limit - runtime.length(0)))])
            runtime.evict(0, 4, limit // 4)
            assert runtime.length(0) == limit - limit // 4
        assert np.isfinite(self._logits(runtime, self.prompt)).all()
        runtime.truncate(0, 0)
        self._assert_close(self._logits(runtime, self.prompt[:4]), expected)
        runtime.close()

    def test_a_copy_goes_on_as_the_original_would(self) -> None:
        """Between two slots, where there are two; the original stays."""
        runtime = self.open_runtime()
        if runtime.cache.slots > 1:
            expected = self._logits(runtime, self.prompt)
            runtime.copy(0, 1, 5)
            assert (runtime.length(0), runtime.length(1)) == (len(self.prompt), 5)
            found = runtime.forward([Chunk(slot=1, tokens=self.prompt[5:], rows="all")])
            self._assert_close(found, expected[5:])
        runtime.close()

    def test_what_was_exported_goes_on_in_another_runtime_as_it_would_have_here(self) -> None:
        """After an eviction too, so keys are exported as they are rotated now. What the slot held before is gone."""
        runtime, other = self.open_runtime(), self.open_runtime()
        self._logits(runtime, self.prompt)
        if runtime.cache.slides:
            runtime.evict(0, 2, 3)
        length = runtime.length(0)
        layers = [(keys.copy(), values.copy()) for keys, values in runtime.export(0)]
        shape = (runtime.spec.kv_heads, length, runtime.spec.head_size)
        assert [part.shape for layer in layers for part in layer] == [shape] * 2 * len(runtime.spec.layers)
        assert {part.dtype for layer in layers for part in layer} == {np.dtype(np.float32)}
        expected = self._logits(runtime, self.prompt)
        for target, slot in ((other, 0), (runtime, runtime.cache.slots - 1)):
            target.forward([Chunk(slot=slot, tokens=[9, 9, 9] if target is other else [9])])
            target.restore(slot, layers, length)
            assert target.length(slot) == length
            found = target.forward([Chunk(slot=slot, tokens=self.prompt, rows="all")])
            self._assert_close(found, expected)
        runtime.close()
        other.close()

    def test_a_restore_that_fails_leaves_nothing_in_its_slot(self) -> None:
        """Layers that raise, of another shape, too few or too many; and what is refused at once changes nothing."""
        runtime = self.open_runtime()
        expected = self._logits(runtime, self.prompt)
        layers = [(keys.copy(), values.copy()) for keys, values in runtime.export(0)]
        length = len(self.prompt)

        def broken() -> Iterator[LayerKv]:
            yield layers[0]
            raise EOFError

        _refused(OptionError, lambda: runtime.restore(runtime.cache.slots, layers, length))
        _refused(OptionError, lambda: runtime.export(runtime.cache.slots))
        _refused(ContextOverflowError, lambda: runtime.restore(0, layers, runtime.cache.tokens + 1))
        assert runtime.length(0) == length
        bad: list[Iterable[LayerKv]] = [layers[1:], [*layers, layers[0]], [(k[:, 1:], v) for k, v in layers]]
        for wrong in bad:
            runtime.restore(0, layers, length)
            _refused(OptionError, lambda wrong=wrong: runtime.restore(0, wrong, length))
            assert runtime.length(0) == 0
        runtime.restore(0, layers, length)
        if len(layers) > 1:
            _refused(EOFError, lambda: runtime.restore(0, broken(), length))
            assert runtime.length(0) == 0
        self._assert_close(self._logits(runtime, self.prompt), expected)
        runtime.close()

    def test_slots_that_run_together_get_what_each_gets_alone(self) -> None:
        """Chunks of different lengths in one batch, the slots in any order."""
        runtime = self.open_runtime()
        if runtime.cache.slots > 1:
            expected = self._logits(runtime, self.prompt)
            runtime.truncate(0, 3)
            found = runtime.forward(
                [Chunk(slot=1, tokens=self.prompt, rows="all"), Chunk(slot=0, tokens=self.prompt[3:4])]
            )
            self._assert_close(found, np.concatenate([expected, expected[3:4]]))
        runtime.close()

    def test_bad_requests_are_refused_and_change_nothing(self) -> None:
        """Slots and ids out of range, empty chunks, a truncation that would lengthen."""
        runtime = self.open_runtime()
        self._logits(runtime, self.prompt)
        for chunk in (
            Chunk(slot=runtime.cache.slots, tokens=[1]),
            Chunk(slot=0, tokens=[]),
            Chunk(slot=0, tokens=[runtime.spec.vocab_size]),
            Chunk(slot=0, tokens=[-1]),
        ):
            _refused(OptionError, lambda bad=chunk: runtime.forward([bad]))
        twice = [Chunk(slot=0, tokens=[1]), Chunk(slot=0, tokens=[2])]
        _refused(OptionError, lambda: runtime.forward(twice))
        _refused(OptionError, lambda: runtime.truncate(0, len(self.prompt) + 1))
        if runtime.cache.slides:
            _refused(OptionError, lambda: runtime.evict(0, len(self.prompt) - 1, 2))
        _refused(OptionError, lambda: runtime.copy(0, runtime.cache.slots, 1))
        assert runtime.length(0) == len(self.prompt)
        runtime.close()

    def test_closing_twice_is_allowed_and_ends_it(self) -> None:
        """A closed runtime refuses with BackendError."""
        runtime = self.open_runtime()
        runtime.close()
        runtime.close()
        _refused(BackendError, lambda: runtime.forward([Chunk(slot=0, tokens=[1])]))
        _refused(BackendError, lambda: runtime.export(0))


def _refused(kind: type[Exception], call: object) -> None:
    assert callable(call)
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected")
