"""What a template writes around the texts: turns that are closed as they are opened, and do not run into each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

from onhand.types import Message, Role

Pair = tuple[str, str]
"""The marker that opens something, and the one that closes it."""

_MARKER = re.compile(
    r"<\|\w+\|>|<\|\w+>|<\w+\|>"  # <|im_start|>, <|turn>, <turn|>
    r"|</?[A-Za-z_]{2,}>|\[/?[A-Z_]{2,}\]"  # <start_of_turn>, </user>, [/INST]
)
_OPPOSITES = (("start", "end"), ("begin", "end"), ("START", "END"))

MAX_PAIRS = 32
"""The most pairs of markers that are counted, so that a hostile template cannot name thousands. No real one has 15."""

_TWO_TURNS: tuple[Role, ...] = ("user", "assistant", "user")
_PLAIN: Sequence[tuple[Role, ...]] = (
    ("user",),
    _TWO_TURNS,
    ("system", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant"),
    ("system", "user", "assistant"),
    ("user", "assistant", "user", "assistant"),
)
"""What every template was written for."""


def probe(roles: Sequence[Role]) -> list[Message]:
    """A conversation of these roles; each content is another, and stands in no template."""
    return [Message(role, f"Probe{index}of{role}") for index, role in enumerate(roles)]


def stand_in(messages: Sequence[Message]) -> list[Message]:
    """A probe for this conversation: what is blank in it is so in the probe."""
    probes = probe([message.role for message in messages])
    return [one if message.content.strip() else message for message, one in zip(messages, probes, strict=True)]


class Turns:
    """How one template marks its turns, as plain conversations show it; every other must be marked alike.

    Turn markers are told by their names (`marker_pairs`). How many stay open depends on who spoke last; a pair of which
    plain conversations do not leave equally many open marks something else. Only probes are looked at, so that what
    people write is never taken for a marker.
    """

    def __init__(self, source: str, render: Callable[[Sequence[Message]], str | None]) -> None:
        """Look at plain conversations. source: the template. render: gives the prompt, or None for a refusal."""
        prompts = {roles: render(probe(roles)) for roles in _PLAIN}
        pairs = marker_pairs(source)
        self._open: dict[bool, dict[Pair, int]] = {}
        for by_assistant in (False, True):
            texts = [text for roles, text in prompts.items() if text and (roles[-1] == "assistant") == by_assistant]
            counts = {pair: {_left_open(text, pair) for text in texts} for pair in pairs}
            self._open[by_assistant] = {pair: found.pop() for pair, found in counts.items() if len(found) == 1}
        two_turns = prompts[_TWO_TURNS]
        self._apart = two_turns is not None and not _run_together(probe(_TWO_TURNS), two_turns)

    def keeps(self, messages: Sequence[Message], prompt: str) -> bool:
        """Whether every turn is closed, and none runs into the next, as far as that is so in plain conversations."""
        expected = self._open[bool(messages) and messages[-1].role == "assistant"]
        even = all(_left_open(prompt, pair) == count for pair, count in expected.items())
        return even and not (self._apart and _run_together(messages, prompt))


def marker_pairs(source: str) -> list[Pair]:
    """The pairs in a template's source, found by their names: <|im_start|> and <|im_end|>, [INST] and [/INST].

    Those of thoughts are left out: many templates close a thought in a turn that never opened one.
    """
    markers = {marker for marker in _MARKER.findall(source) if "think" not in marker}
    pairs = ((opening, closing) for opening in sorted(markers) for closing in _closings(opening) if closing in markers)
    return list(islice(pairs, MAX_PAIRS))


def _closings(opening: str) -> Iterator[str]:
    """What could close it."""
    yield f"{opening[0]}/{opening[1:]}"
    yield f"<{opening[2:-1]}|>"
    for begin, end in _OPPOSITES:
        if begin in opening:
            yield opening.replace(begin, end)


def _left_open(text: str, pair: Pair) -> int:
    """How many more there are that open than that close."""
    opening, closing = pair
    return text.count(opening) - text.count(closing)


def _run_together(messages: Sequence[Message], prompt: str) -> bool:
    """Whether nothing stands between two contents; where the assistant begins or ends, white space is nothing."""
    for before, after in pairwise(message for message in messages if message.content.strip()):
        end, start = prompt.find(before.content) + len(before.content), prompt.find(after.content)
        gap = prompt[end:start]
        speaker_changes = (before.role == "assistant") != (after.role == "assistant")
        if end <= start and not (gap.strip() if speaker_changes else gap):
            return True
    return False
