"""What every DecoderRuntime refuses, and with which error: for those who write one.

lengths: how many tokens each slot holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from onhand.backends import Batch, CacheShape, LayerKv
from onhand.errors import ContextOverflowError, OptionError

if TYPE_CHECKING:
    from onhand.formats.spec import DecoderSpec


def check_batch(batch: Batch, spec: DecoderSpec, cache: CacheShape, lengths: Sequence[int]) -> None:
    """Refuse the whole batch before anything of it is run. Raises OptionError, ContextOverflowError."""
    slots = [chunk.slot for chunk in batch]
    for chunk in batch:
        check_slot(chunk.slot, cache)
        if slots.count(chunk.slot) > 1:
            raise OptionError("batch", f"{slots.count(chunk.slot)} chunks for slot {chunk.slot}", "one chunk a slot")
        if not chunk.tokens or not 0 <= min(chunk.tokens) <= max(chunk.tokens) < spec.vocab_size:
            raise OptionError("tokens", len(chunk.tokens), f"at least one id, each from 0 to {spec.vocab_size - 1}")
        end = lengths[chunk.slot] + len(chunk.tokens)
        if end > cache.tokens:
            raise ContextOverflowError(end, cache.tokens)


def check_slot(slot: int, cache: CacheShape) -> None:
    """Raises OptionError for a slot that is not there."""
    if not 0 <= slot < cache.slots:
        raise OptionError("slot", slot, f"0 to {cache.slots - 1}")


def check_truncation(slot: int, length: int, cache: CacheShape, lengths: Sequence[int]) -> None:
    """Raises OptionError for a slot that is not there or holds fewer tokens."""
    check_slot(slot, cache)
    if not 0 <= length <= lengths[slot]:
        raise OptionError("length", length, f"0 to {lengths[slot]}, the tokens in slot {slot}")


def check_eviction(slot: int, first: int, count: int, cache: CacheShape, lengths: Sequence[int]) -> None:
    """Raises OptionError for a slot that is not there or places that hold no tokens."""
    check_slot(slot, cache)
    if first < 0 or count < 1 or first + count > lengths[slot]:
        raise OptionError("first, count", (first, count), f"places within the {lengths[slot]} tokens in slot {slot}")


def check_restoring(slot: int, tokens: int, cache: CacheShape) -> None:
    """Raises OptionError for a slot that is not there, ContextOverflowError for more tokens than one holds."""
    check_slot(slot, cache)
    if tokens < 0:
        raise OptionError("tokens", tokens, f"0 to {cache.tokens}")
    if tokens > cache.tokens:
        raise ContextOverflowError(tokens, cache.tokens)


def checked_layers(layers: Iterable[LayerKv], spec: DecoderSpec, tokens: int) -> Iterator[LayerKv]:
    """The layers, as they come. Raises OptionError when they are too few, too many or of another shape."""
    shape, count = (spec.kv_heads, tokens, spec.head_size), 0
    for keys, values in layers:
        count += 1
        if count > len(spec.layers) or not keys.shape == values.shape == shape:
            break
        yield keys, values
    else:
        if count == len(spec.layers):
            return
    raise OptionError("layers", f"layer {count}", f"{len(spec.layers)} times keys and values of shape {shape}")
