"""Plans what a model takes of memory, before it is loaded: whether it fits, and what would.

The whole KV cache counts. The system commits its memory only as conversations fill it, but a model that was loaded on
that promise would be killed in the middle of one; and where numpy asks for huge pages, as it does on Linux, a window of
8,192 tokens takes four fifths of its memory after the first 512.
"""

from __future__ import annotations

from dataclasses import replace

from onhand.backends import Backend, MemoryNeeds, MemoryPlanner
from onhand.errors import MemoryPlanError, OptionError
from onhand.formats.gguf import GgufFile
from onhand.formats.spec import DecoderSpec
from onhand.memory import free_memory
from onhand.options import DEFAULT_CONTEXT_TOKENS, CacheOptions
from onhand.types import MemoryPlan

# Measured: 14 MB for SmolLM2's vocabulary of 49,152 tokens, 100 MB for the 262,144 of Gemma 3.
TOKENIZER_BYTES_PER_TOKEN = 350

# What a plan advises is a multiple of this: a window of a sentence or two is no advice, and what is available now is a
# little less when the advice is taken.
ADVISED_TOKENS = 256


def window_of(cache: CacheOptions, spec: DecoderSpec, name: str) -> int:
    """The window in tokens that a model will have. Raises OptionError for one longer than it was trained for."""
    window = cache.context_tokens or min(spec.context_tokens, DEFAULT_CONTEXT_TOKENS)
    if window > spec.context_tokens:
        raise OptionError("context_tokens", window, f"at most {spec.context_tokens}, what {name} was trained for")
    return window


def plan_memory(
    backend: Backend, file: GgufFile, spec: DecoderSpec, cache: CacheOptions, *, name: str, beside: int = 0
) -> MemoryPlan | None:
    """The plan for a model with such a cache; None where the backend makes none. Raises as `window_of`.

    name: the model's. beside: bytes that will be taken besides, by its draft.
    """
    window = window_of(cache, spec, name)
    if not isinstance(backend, MemoryPlanner):
        return None
    needs = _Needs(backend, file, spec, beside)
    wanted = needs.of(window, cache.slots, cache.kv_bits)
    free = free_memory(wanted.mapped_bytes)
    plan = MemoryPlan(
        weights_bytes=wanted.weights_bytes,
        kv_bytes=wanted.kv_bytes,
        overhead_bytes=wanted.overhead_bytes,
        available_bytes=free.size_bytes,
        limited_by=free.source,
        window_tokens=window,
        slots=cache.slots,
        kv_bits=cache.kv_bits,
    )
    if free.size_bytes is None:
        return plan
    largest = needs.largest_window(cache.slots, cache.kv_bits, free.size_bytes)
    plan = replace(plan, largest_window_tokens=largest)
    return plan if plan.fits else replace(plan, remedy=_remedy(needs, plan, free.size_bytes))


def check(plan: MemoryPlan | None, name: str) -> None:
    """Raise MemoryPlanError if it is known that the model will not fit."""
    if plan is not None and plan.fits is False:
        raise MemoryPlanError(name, plan)


class _Needs:
    """What one model takes, by its cache."""

    def __init__(self, backend: MemoryPlanner, file: GgufFile, spec: DecoderSpec, beside: int) -> None:
        self.spec = spec
        self._backend = backend
        self._file = file
        self._beside = beside + spec.vocab_size * TOKENIZER_BYTES_PER_TOKEN

    def of(self, window: int, slots: int, kv_bits: int) -> MemoryNeeds:
        needs = self._backend.memory_needs(self._file, self.spec, window_tokens=window, slots=slots, kv_bits=kv_bits)
        return replace(needs, overhead_bytes=needs.overhead_bytes + self._beside)

    def fit(self, window: int, slots: int, kv_bits: int, available: int) -> bool:
        needs = self.of(window, slots, kv_bits)
        return needs.weights_bytes + needs.kv_bytes + needs.overhead_bytes <= available

    def largest_window(self, slots: int, kv_bits: int, available: int) -> int:
        """The most tokens that fit, 0 for none."""
        least, most = 0, self.spec.context_tokens
        while least < most:
            middle = (least + most + 1) // 2
            if self.fit(middle, slots, kv_bits, available):
                least = middle
            else:
                most = middle - 1
        return least


def _remedy(needs: _Needs, plan: MemoryPlan, available: int) -> str:
    """The next smaller choices that fit: those that change one setting, else all of them at once."""
    window, slots, kv_bits = plan.window_tokens, plan.slots, plan.kv_bits
    choices = []
    if smaller := _advised(needs.largest_window(slots, kv_bits, available)):
        choices.append(f"context_tokens={smaller}")
    if fewer := next((n for n in range(slots - 1, 0, -1) if needs.fit(window, n, kv_bits, available)), None):
        choices.append(f"slots={fewer}")
    if kv_bits > 8 and needs.fit(window, slots, 8, available):
        choices.append("kv_bits=8")
    if choices:
        return f"choose {' or '.join(choices)}"
    if smaller := _advised(min(window, needs.largest_window(1, 8, available))):
        both = [f"context_tokens={smaller}", *["slots=1"] * (slots > 1), *["kv_bits=8"] * (kv_bits > 8)]
        return f"choose {' with '.join(both[:2])}{' and '.join(['', *both[2:]])}"
    return "no window fits: choose a smaller model, or end other programs"


def _advised(tokens: int) -> int:
    return tokens // ADVISED_TOKENS * ADVISED_TOKENS
