"""What a chat template may cost. Every operation pays, before it runs, for what it reads and what it will write.

One account bounds time and memory at once, in the same process, on any thread, and without a clock: a suspended
laptop or a slow phone gives the same answer as a fast one. A unit stands for one character handled; anything that
takes about as long as 64 characters (an operation, one element of a list) pays 64. The hostile templates of the tests
each use up BASE_UNITS in less than a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from jinja2.runtime import Context
from jinja2.utils import Namespace

from onhand.errors import TemplateLimitError

T = TypeVar("T")

OPERATION = 64
"""Units of one operation, and of one element of a container."""

BASE_UNITS = 4_000_000
UNITS_PER_INPUT = 256
"""The account: a fixed sum, and this many for each unit that the messages themselves measure."""

UNITS_PER_PAIR = 1_024
"""Some templates look at every message for every message; each such pair is allowed this much."""

MAX_INT_BITS = 4_096
"""The largest integer that a template may make: arithmetic on it stays about as cheap as any other operation."""

_SEQUENCES: tuple[type[Collection[object]], ...] = (list, tuple, type({}.keys()), type({}.values()), type({}.items()))
_CONTEXT_KEY = "the meter of this rendering"  # not an identifier: no template can name it


class Meter:
    """The account of one rendering. Once empty it stays empty, so no template can catch the error and go on."""

    __slots__ = ("_known", "_left", "limit")

    def __init__(self, messages: list[dict[str, object]], variables: dict[str, object]) -> None:
        """Open an account that is large enough for these inputs, and remember how large each of them is."""
        self._known: dict[int, int] = {}
        self._left = self.limit = 1 << 62
        measured = sum(self._remember(value) for value in (messages, *variables.values()))
        self._left = self.limit = BASE_UNITS + UNITS_PER_INPUT * measured + UNITS_PER_PAIR * len(messages) ** 2

    def _remember(self, value: object) -> int:
        """Measure an input once: it outlives the rendering and cannot be changed, so its id stands for it."""
        if isinstance(value, dict | list | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                self._remember(inner)
            self._known[id(value)] = self.size(value)
        return self.size(value)

    def spend(self, units: int) -> None:
        """Pay. Raises TemplateLimitError when the account does not hold that much."""
        self._left -= units
        if self._left < 0:
            self._left = -1
            raise TemplateLimitError(
                f"it does more than these messages call for (over {self.limit:,} units of work) and was stopped; "
                "use another template"
            )

    def pay_for(self, *values: object) -> None:
        """Pay for one operation on these values."""
        units = OPERATION
        for value in values:
            units += len(value) if type(value) is str else self.size(value)
        self.spend(units)

    def pay_for_result(self, value: object) -> None:
        """Pay for having made this value. A new container holds references: what they lead to was not copied."""
        if isinstance(value, dict | list | tuple):
            self.spend(OPERATION * (1 + len(value)))
        else:
            self.pay_for(value)

    def size(self, value: object) -> int:
        """The units that it takes to read all of a value; what is shared counts each time that it is met.

        That is what writing or comparing it would cost: a list of two references to a list of two references and so on
        is small in memory and endless in print.
        """
        total = 0
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, int):
                total += _int_size(item)
            elif id(item) in self._known:
                total += self._known[id(item)]
            elif isinstance(item, dict):
                total += OPERATION * (1 + len(item))
                waiting += item.keys()
                waiting += item.values()
            elif isinstance(item, _SEQUENCES):
                total += OPERATION * (1 + len(item))
                waiting += item
            elif isinstance(item, range):
                total += len(item)
            elif isinstance(item, Namespace):
                total += OPERATION
                waiting.append(object.__getattribute__(item, "_Namespace__attrs"))  # it hides its own parts
            if total > self._left:
                self.spend(total)
        return total

    def metered(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, each paid for as it is taken."""
        for item in items:
            self.pay_for(item)
            yield item


def _int_size(value: int) -> int:
    bits = value.bit_length()
    if bits > MAX_INT_BITS:
        raise TemplateLimitError(f"it makes an integer of {bits} bits; at most {MAX_INT_BITS} are allowed")
    return bits // 8


def with_meter(variables: dict[str, object], meter: Meter) -> dict[str, object]:
    """The variables of a rendering that `meter` pays for."""
    return {**variables, _CONTEXT_KEY: meter}


def meter_of(context: Context) -> Meter:
    """The account that pays for what happens in this context."""
    meter = context.parent[_CONTEXT_KEY]
    assert isinstance(meter, Meter)  # only `with_meter` writes there
    return meter
