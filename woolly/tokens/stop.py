"""Stop string detection in streamed text, also across chunks."""

from __future__ import annotations


class StopMatcher:
    """Withholds text that may begin a stop string; the stop string itself is never returned."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found: str | None = None  # the stop string found; the longest if several begin at the same position

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that may be shown, and True if a stop string was found."""
        if not self._stops:
            return text, False
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, self.found = min(found)
            shown, self._held = self._held[:at], ""
            return shown, True
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def finish(self) -> str:
        """Return the withheld text at the end of the stream."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-n:]):
            return n
    return 0
