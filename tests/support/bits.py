"""A runtime that has every logit's bits held against all that were computed from the same keys and values before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from onhand.backends import Batch, DecoderRuntime, LayerKv, Logits


class BitsWitness:
    """Raises AssertionError where a token gets other logits than it once got behind the same tokens.

    For each place of a slot it keeps a name of what is held up to there: which tokens, each read behind which others,
    and moved up by how many. So what was evicted, copied and truncated counts, and how tokens were cut into runs does
    not.
    seen: shared by runtimes of one model that are to give the same bits. compared: how many rows were seen before.
    """

    def __init__(self, runtime: DecoderRuntime, seen: dict[bytes, bytes] | None = None) -> None:
        self._runtime = runtime
        self.spec, self.cache = runtime.spec, runtime.cache
        self._entries: list[list[bytes]] = [[] for _ in range(runtime.cache.slots)]
        self._names: list[list[bytes]] = [[] for _ in range(runtime.cache.slots)]
        self._seen = {} if seen is None else seen
        self._restored = 0
        self.compared = 0

    def forward(self, batch: Batch) -> Logits:
        logits, row = self._runtime.forward(batch), 0
        for chunk in batch:
            first = len(self._names[chunk.slot])
            for token in chunk.tokens:
                self._append(chunk.slot, _name(self._held(chunk.slot), str(token)))
            wanted = {"none": 0, "last": 1, "all": len(chunk.tokens)}[chunk.rows]
            for place in range(first + len(chunk.tokens) - wanted, first + len(chunk.tokens)):
                self._compare(self._names[chunk.slot][place], logits[row], (chunk.slot, place, first, batch))
                row += 1
        return logits

    def _compare(self, name: bytes, row: Logits, where: object) -> None:
        bits = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        before = self._seen.setdefault(name, bits)
        self.compared += before is not bits
        assert before == bits, f"other bits than before: slot, place, first place of the run, batch are {where}"

    def truncate(self, slot: int, length: int) -> None:
        self._runtime.truncate(slot, length)
        del self._entries[slot][length:], self._names[slot][length:]

    def evict(self, slot: int, first: int, count: int) -> None:
        self._runtime.evict(slot, first, count)
        moved = [_name(entry, f"moved {count}") for entry in self._entries[slot][first + count :]]
        del self._entries[slot][first:], self._names[slot][first:]
        for entry in moved:
            self._append(slot, entry)

    def copy(self, source: int, target: int, length: int) -> None:
        self._runtime.copy(source, target, length)
        self._entries[target], self._names[target] = self._entries[source][:length], self._names[source][:length]

    def export(self, slot: int) -> Iterator[LayerKv]:
        return self._runtime.export(slot)

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        self._entries[slot], self._names[slot] = [], []
        self._runtime.restore(slot, layers, tokens)
        for place in range(tokens):  # approximations, unlike anything else
            self._restored += 1
            self._append(slot, _name(b"", f"restored {self._restored} {place}"))

    def length(self, slot: int) -> int:
        assert self._runtime.length(slot) == len(self._names[slot])
        return self._runtime.length(slot)

    def close(self) -> None:
        self._runtime.close()

    def _held(self, slot: int) -> bytes:
        return self._names[slot][-1] if self._names[slot] else b""

    def _append(self, slot: int, entry: bytes) -> None:
        self._names[slot].append(_name(self._held(slot), entry.hex()))
        self._entries[slot].append(entry)


def _name(before: bytes, what: str) -> bytes:
    return hashlib.blake2b(before + what.encode(), digest_size=16).digest()
