"""strftime with English names and C99's and GNU's directives, whatever the locale and the platform."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

_NUMBERS: dict[str, tuple[int, str, Callable[[datetime], int]]] = {
    # directive: (digits, padding, value)
    "C": (2, "0", lambda now: now.year // 100),
    "d": (2, "0", lambda now: now.day),
    "e": (2, " ", lambda now: now.day),
    "f": (6, "0", lambda now: now.microsecond),
    "g": (2, "0", lambda now: now.isocalendar().year % 100),
    "G": (4, "0", lambda now: now.isocalendar().year),
    "H": (2, "0", lambda now: now.hour),
    "I": (2, "0", lambda now: (now.hour - 1) % 12 + 1),
    "j": (3, "0", lambda now: now.timetuple().tm_yday),
    "k": (2, " ", lambda now: now.hour),
    "l": (2, " ", lambda now: (now.hour - 1) % 12 + 1),
    "m": (2, "0", lambda now: now.month),
    "M": (2, "0", lambda now: now.minute),
    "s": (1, "0", lambda now: int(now.timestamp())),
    "S": (2, "0", lambda now: now.second),
    "u": (1, "0", lambda now: now.isoweekday()),
    "U": (2, "0", lambda now: (now.timetuple().tm_yday + 6 - now.isoweekday() % 7) // 7),
    "V": (2, "0", lambda now: now.isocalendar().week),
    "w": (1, "0", lambda now: now.isoweekday() % 7),
    "W": (2, "0", lambda now: (now.timetuple().tm_yday + 6 - now.weekday()) // 7),
    "y": (2, "0", lambda now: now.year % 100),
    "Y": (4, "0", lambda now: now.year),
}

_TEXTS: dict[str, Callable[[datetime], str]] = {
    "a": lambda now: _DAYS[now.weekday()][:3],
    "A": lambda now: _DAYS[now.weekday()],
    "b": lambda now: _MONTHS[now.month - 1][:3],
    "B": lambda now: _MONTHS[now.month - 1],
    "h": lambda now: _MONTHS[now.month - 1][:3],
    "n": lambda now: "\n",
    "p": lambda now: "AM" if now.hour < 12 else "PM",
    "P": lambda now: "am" if now.hour < 12 else "pm",
    "t": lambda now: "\t",
    "z": lambda now: now.strftime("%z"),
    "Z": lambda now: now.tzname() or "",
    "%": lambda now: "%",
}

_COMPOSED = {
    "c": "%a %b %e %H:%M:%S %Y",
    "D": "%m/%d/%y",
    "F": "%Y-%m-%d",
    "r": "%I:%M:%S %p",
    "R": "%H:%M",
    "T": "%H:%M:%S",
    "x": "%m/%d/%y",
    "X": "%H:%M:%S",
}

_PADDING = {"-": "", "_": " ", "0": "0"}


def strftime(now: datetime, text: str) -> str:
    """Format a time. `%-d`, `%_d`, `%0e`, `%^a` work on every platform; an unknown directive stays as it stands."""

    def one(match: re.Match[str]) -> str:
        flag, directive = match["flag"], match["directive"]
        if directive in _COMPOSED:
            written = strftime(now, _COMPOSED[directive])
        elif directive in _TEXTS:
            written = _TEXTS[directive](now)
        elif directive in _NUMBERS:
            digits, padding, value = _NUMBERS[directive]
            padding = _PADDING.get(flag, padding)
            written = str(value(now)).rjust(digits, padding) if padding else str(value(now))
        else:
            return match[0]
        return written.upper() if flag == "^" else written

    return re.sub(r"%(?P<flag>[-_0^]?)[EO]?(?P<directive>[A-Za-z%])", one, text)
