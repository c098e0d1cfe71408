"""What the slots of a runtime hold, and which one a prompt goes on in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from onhand.backends import Chunk, DecoderRuntime, LayerKv, Logits
from onhand.decoding.cuts import Cuts

WORTH_COPYING_TOKENS = 32
"""A shared beginning shorter than this is read again rather than copied from another slot."""


@dataclass(slots=True)
class Slot:
    """One conversation's tokens in the runtime. ids: all that were taken in; cuts: which of them are evicted.

    The runtime holds len(ids) - cuts.total tokens of it. used: grows with every use, to find the one unused longest.
    """

    runtime: DecoderRuntime
    number: int
    ids: list[int] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)
    used: int = 0

    @property
    def length(self) -> int:
        """How many tokens the runtime holds."""
        return len(self.ids) - self.cuts.total

    def shared(self, ids: Sequence[int], *, whole: bool = False) -> int:
        """The index up to which these ids can go on from what the slot holds. The last id is always read anew.

        whole: nothing of them is to be cut, so not from behind a hole.
        """
        index = self.known(ids[:-1])
        return min(index, self.cuts.start_of_cut_after(-1, index)) if whole else index

    def known(self, ids: Sequence[int]) -> int:
        """The index up to which the slot holds these ids."""
        return self.cuts.start_of_cut_around(_common(self.ids, ids))

    def holds(self, ids: list[int], cuts: Cuts) -> bool:
        """Whether the slot begins with these ids, and with nothing else of them cut."""
        return self.ids[: len(ids)] == ids and self.cuts.until(len(ids)) == cuts

    def cut_back(self, index: int) -> None:
        """Forget everything from that index on."""
        self.runtime.truncate(self.number, self.cuts.place(index))
        del self.ids[index:]
        self.cuts = self.cuts.until(index)

    def clear(self) -> None:
        """Hold nothing."""
        self.forget()
        self.runtime.truncate(self.number, 0)

    def forget(self) -> None:
        """Know of nothing that the runtime holds: it is closed now, or about to be told."""
        self.ids.clear()
        self.cuts = Cuts()

    def take(self, other: Slot, index: int) -> None:
        """Hold what the other slot holds up to that index, and nothing else."""
        self.clear()  # an interrupt in the middle of the copy must leave nothing that looks whole
        self.runtime.copy(other.number, self.number, other.cuts.place(index))
        self.ids = other.ids[:index]
        self.cuts = other.cuts.until(index)

    def restore(self, ids: Sequence[int], cuts: Cuts, layers: Iterable[LayerKv]) -> None:
        """Hold these ids, whose keys and values the layers are, and nothing else; nothing at all if that fails."""
        self.cut_back(0)
        self.runtime.restore(self.number, layers, len(ids) - cuts.total)
        self.ids, self.cuts = list(ids), cuts

    def append(self, ids: Sequence[int], cuts: Cuts) -> None:
        """Take in ids that the runtime has just read, with the holes between them."""
        self.ids += ids
        self.cuts = cuts.until(len(self.ids))

    def evict(self, cuts: Cuts) -> None:
        """Drop what these cuts, which contain the slot's own, leave out. What stays moves up: the window slides."""
        try:
            for start, end in reversed(cuts.until(len(self.ids)).spans):
                if count := self.cuts.count(start, end):
                    self.runtime.evict(self.number, self.cuts.place(start), count)
        except BaseException:  # interrupted, it may have moved some layers and not the others
            self.clear()
            raise
        self.cuts = cuts.until(len(self.ids))

    def recover(self) -> None:
        """After a failed run: forget what the runtime may have taken in of it. What the slot holds is as before."""
        length = min(self.length, self.runtime.length(self.number))
        self.runtime.truncate(self.number, length)
        while self.length > length:
            self.cut_back(self.cuts.start_of_cut_around(len(self.ids) - 1))


def forward(runtime: DecoderRuntime, chunks: Sequence[Chunk], slots: Sequence[Slot]) -> Logits:
    """One run of the runtime; if it fails, the slots hold what they held before."""
    for slot in slots:
        if runtime.length(slot.number) != slot.length:  # an interrupt came between a run and taking note of it
            slot.recover()
    try:
        return runtime.forward(chunks)
    except BaseException:
        for slot in slots:
            slot.recover()
        raise


def choose(slots: Sequence[Slot], free: Collection[int], ids: Sequence[int], *, whole: bool) -> Slot:
    """The free slot in which the ids go on, cut back to what it shares with them.

    A conversation that goes on stays where it is. Where ids branch off from what a slot holds, an edited question or
    another conversation with the same system prompt, the branch goes where fewer tokens are lost: here, or over what
    was unused longest, to which the shared beginning is then copied. free: numbers, at least one. whole: whether all
    of the ids are to be in sight, whatever the slots dropped of them when they were part of something longer.
    """
    best = max(slots, key=lambda slot: (slot.cuts.place(slot.shared(ids, whole=whole)), slot.number in free))
    index = best.shared(ids, whole=whole)
    shared = best.cuts.place(index)
    oldest = unused_longest(slots, free)
    if best.number in free and best.length - shared <= oldest.length:
        best.cut_back(index)
        return best
    if oldest is not best and shared >= WORTH_COPYING_TOKENS:
        oldest.take(best, index)
    else:
        oldest.cut_back(oldest.shared(ids, whole=whole))
    return oldest


def fullest(slots: Sequence[Slot], ids: Sequence[int]) -> Slot:
    """The slot that holds most of these ids, from the first on."""
    return max(slots, key=lambda slot: slot.cuts.place(slot.known(ids)))


def unused_longest(slots: Sequence[Slot], free: Collection[int]) -> Slot:
    """An empty slot, or the one that was unused longest. free: numbers, at least one."""
    return min((slot for slot in slots if slot.number in free), key=lambda slot: (slot.length > 0, slot.used))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many of the first elements are equal."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
