"""Stop string detection in streamed text, including matches across chunks."""

from __future__ import annotations


class StopMatcher:
    """Buffers text that may be the beginning of a stop string. The stop string itself is never returned."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._buffer = ""
        self.found: str | None = None  # found stop string; the longest if several begin at the same position

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that may be shown, and True if a stop string was found."""
        if not self._stops:
            return text, False
        self._buffer += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._buffer.find(stop)) >= 0]
        if found:
            at, _, self.found = min(found)
            shown, self._buffer = self._buffer[:at], ""
            return shown, True
        keep = max(_overlap(self._buffer, stop) for stop in self._stops)
        shown, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        return shown, False

    def finish(self) -> str:
        """Return the buffered text at the end of the stream."""
        buffer, self._buffer = self._buffer, ""
        return buffer


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-n:]):
            return n
    return 0
