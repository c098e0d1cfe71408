"""What a template may call, and what the calls cost that write much more than they read.

Everything else writes about as much as it reads, so the meter's plain rule covers it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sized
from typing import Any

from jinja2 import pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context

from onhand.errors import TemplateLimitError
from onhand.prompts.meter import MAX_INT_BITS, OPERATION, Meter, meter_of

STR_METHODS = frozenset(
    {
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map"),
        *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    }
)
DICT_METHODS = frozenset({"copy", "get", "items", "keys", "values"})
LIST_METHODS = frozenset({"copy", "count", "index"})

REFUSED_FILTERS = frozenset({"pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"})
"""Filters for web pages that no prompt needs and whose cost has no simple bound. `random` would never repeat."""

CONSTANT_TIME = frozenset(
    {
        *("length", "default", "d", "first"),
        *("defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float"),
        *("boolean", "true", "false", "callable"),
    }
)
"""Filters and tests that take no longer for a larger value."""

MAX_FIELD_WIDTH = 256
"""The widest field that str.format may pad to."""

MAX_ATTRIBUTE_CHARS = 64
"""The longest attribute path ("function.name") that a filter may follow for every element."""

Growth = Callable[..., int]
"""(meter, the value, *the call's arguments) -> units of what will be written beyond what was read."""


def _whole(value: object) -> int:
    """A count as the function will take it. What is no integer makes the function raise TypeError by itself."""
    return max(value, 0) if isinstance(value, int) else 0


def _padded(meter: Meter, value: Any, width: Any = 80, *fill: Any) -> int:
    return _whole(width)


def _replaced(meter: Meter, value: Any, old: Any = "", new: Any = "", *count: Any, **more: Any) -> int:
    return str(value).count(str(old)) * len(str(new))


def _tabs(meter: Meter, value: str, tabsize: Any = 8) -> int:
    return value.count("\t") * _whole(tabsize)


def _indented(meter: Meter, value: Any, width: Any = 4, *which: Any, **more: Any) -> int:
    return (len(str(value).splitlines()) + 2) * (len(width) if isinstance(width, str) else _whole(width))


def _formatted(meter: Meter, value: str, *args: Any, **kwargs: Any) -> int:
    return value.count("{") * (MAX_FIELD_WIDTH + meter.size(args) + meter.size(kwargs))


def _printf(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> int:
    text = str(value)
    specs = " ".join(re.findall(r"%(?:\([^)]*\))?([^a-zA-Z%]*)", text))
    if "*" in specs:
        raise TemplateLimitError("'%*d' takes its width from a value, which is not allowed")
    widths = sum(int(number[:10]) for number in re.findall(r"\d+", specs))
    return widths + text.count("%") * (meter.size(args) + meter.size(kwargs))


def _stripped(meter: Meter, value: Any, chars: Any = None) -> int:
    return len(str(value)) * len(chars) // OPERATION if isinstance(chars, str) else 0


def _searched_backwards(meter: Meter, value: str, sought: Any = None, *limits: Any, **more: Any) -> int:
    # CPython searches from the right by brute force: length times length in the worst case.
    sought = more.get("sep", sought)
    return len(value) * len(sought) // OPERATION if isinstance(sought, str) else 0


def _separators(meter: Meter, value: str, items: Any = ()) -> int:
    return len(value) * len(items)


def _batched(meter: Meter, value: Any, linecount: Any = 0, fill_with: Any = None) -> int:
    return _whole(linecount) if fill_with is not None else 0


def _rounded(meter: Meter, value: Any, precision: Any = 0, *method: Any, **more: Any) -> int:
    return int(_whole(abs(precision)) ** 2)  # a power of ten with that many digits


def _followed(place: int) -> Growth:
    """For filters that follow a path of attributes: the place of that argument."""

    def growth(meter: Meter, value: Any, *args: Any, attribute: Any = None, **more: Any) -> int:
        path = args[place] if len(args) > place else attribute
        if isinstance(path, str) and len(path) > MAX_ATTRIBUTE_CHARS:
            raise TemplateLimitError(f"an attribute of {len(path)} characters; at most {MAX_ATTRIBUTE_CHARS} work")
        return OPERATION * len(value) if path is not None and isinstance(value, Sized) else 0

    return growth


METHOD_GROWTH: Mapping[str, Growth] = {
    "center": _padded,
    "ljust": _padded,
    "rjust": _padded,
    "zfill": _padded,
    "expandtabs": _tabs,
    "replace": _replaced,
    "join": _separators,
    "format": _formatted,
    "format_map": _formatted,
    "strip": _stripped,
    "lstrip": _stripped,
    "rstrip": _stripped,
    "rfind": _searched_backwards,
    "rindex": _searched_backwards,
    "rpartition": _searched_backwards,
    "rsplit": _searched_backwards,
}
"""Methods of str."""

FILTER_GROWTH: Mapping[str, Growth] = {
    "center": _padded,
    "replace": _replaced,
    "indent": _indented,
    "format": _printf,
    "trim": _stripped,
    "batch": _batched,
    "round": _rounded,
    "selectattr": _followed(0),
    "rejectattr": _followed(0),
    "groupby": _followed(0),
    "sum": _followed(0),
    "join": _followed(1),
    "max": _followed(1),
    "min": _followed(1),
    "unique": _followed(1),
    "sort": _followed(2),
    "map": _followed(1_000),  # by keyword only
}


def binary_growth(meter: Meter, operator: str, left: Any, right: Any) -> int:
    """What `left operator right` writes beyond what it reads, in units."""
    if operator == "*":
        many, times = (right, left) if isinstance(left, int) else (left, right)
        return meter.size(many) * _whole(times) if isinstance(many, str | list | tuple) else 0
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * _whole(right)
        if bits > MAX_INT_BITS:
            raise TemplateLimitError(f"a power of about {bits} bits; at most {MAX_INT_BITS} are allowed")
    if operator == "%" and isinstance(left, str):
        return _printf(meter, left, right)
    return 0


@pass_context
def tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it for templates: no HTML escaping, other scripts as they are."""
    meter = meter_of(context)
    meter.spend(meter.size(value) * (len(indent) if isinstance(indent, str) else _whole(indent)))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Piece by piece: deep nesting writes an indent per level on every line, which no estimate before would show.
    return "".join(meter.metered(encoder.iterencode(value)))


@pass_context
def join(context: Context, value: Any, d: Any = "", attribute: str | int | None = None) -> Any:
    """Jinja's join, with the separators paid for."""
    items = list(value)
    meter_of(context).spend(len(items) * len(str(d)))
    return FILTERS["join"](context.eval_ctx, items, d, attribute)


@pass_context
def sum_(context: Context, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's sum, where each addition pays: adding lists copies them again and again."""
    total = start
    for item in value if attribute is None else FILTERS["map"](context, value, attribute=attribute):
        total = context.environment.call_binop(context, "+", total, item)  # type: ignore[attr-defined]
    return total


OUR_FILTERS: Mapping[str, Callable[..., Any]] = {"tojson": tojson, "join": join, "sum": sum_}
"""Filters that take the place of Jinja's."""
