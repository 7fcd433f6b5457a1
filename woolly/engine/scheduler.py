"""The Scheduler: which rows of which sequences run in the next step."""

from __future__ import annotations

from collections import deque

from woolly.engine.pages import PageAllocator
from woolly.engine.sequence import Sequence
from woolly.runtime import pages_for

__all__ = ["Scheduler"]


class Scheduler:
    """First come, first served. Decoding rows go first, so a long prompt delays nobody by more than a chunk."""

    def __init__(self, pages: PageAllocator, *, chunk: int, max_running: int) -> None:
        self.pages = pages
        self.chunk = chunk  # most rows in one step
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def schedule(self) -> list[tuple[Sequence, list[int]]]:
        """Sequences with the tokens that they run next."""
        self._admit()
        decoding = [s for s in self.running if s.n_computed >= len(s.prompt)]
        filling = [s for s in self.running if s.n_computed < len(s.prompt)]
        work, left = [], self.chunk
        for sequence in (*decoding, *filling):
            if tokens := sequence.pending(left):
                work.append((sequence, tokens))
                left -= len(tokens)
            if left == 0:
                break
        return work

    def release(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pages.give_back(sequence.pages)
        sequence.pages = []

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            # Every page that it can ever need is taken at once, so that no running sequence can starve.
            needed = pages_for(len(sequence.prompt) + sequence.max_tokens)
            if needed > self.pages.n_free:
                return
            self.waiting.popleft()
            sequence.pages = self.pages.take(needed)
            self.running.append(sequence)
