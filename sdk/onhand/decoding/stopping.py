"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Text up to the first stop string, whatever the pieces it comes in.

    The stop that is complete first ends the text; of two that end at the same place, the longer one. So the text alone
    decides, not its pieces, and a reply ends as soon as it can. Only a tail that may become a stop is held back.

    matched: the stop that ended the text, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: none of them empty (`GenerationOptions` sees to that)."""
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is now safe to show. After a match always ""."""
        if self.matched is not None:
            return ""
        text = self._held + text
        matches = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if matches:
            end, _, self.matched = min(matches)
            self._held = ""
            return text[: end - len(self.matched)]
        begin = self._first_possible(text)
        self._held = text[begin:]
        return text[:begin]

    def finish(self) -> str:
        """The text has ended: what was held back, for it did not become a stop."""
        held, self._held = self._held, ""
        return held

    def _first_possible(self, text: str) -> int:
        """Where the longest tail begins that is a proper prefix of some stop; the end of the text if none is."""
        for begin in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[begin:]
            if any(stop.startswith(tail) for stop in self._stops):
                return begin
        return len(text)
