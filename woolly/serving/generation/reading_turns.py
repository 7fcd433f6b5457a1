"""ReadingTurns: one reading ahead for each client, none beside an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from woolly.serving.errors import ApiError
from woolly.serving.generation.admission import Admission
from woolly.serving.generation.running import Running

End = Literal["busy", "replaced", "unloaded", "media", "full", "limit"]


class ReadingTurn:
    """The reading of one client, until something more important comes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner  # whose prefixes it reads
        self.ended: End | None = None  # why it ended early
        self.n_cached = 0  # tokens that the cache had
        self.n_read = 0  # tokens that it has since
        self._running: Running | None = None

    def end(self, why: End) -> None:
        """Ends the reading; the engine stops the step that has nothing else."""
        self.ended = self.ended or why
        if self._running is not None:
            self._running.cancel()

    def found(self, n_tokens: int) -> None:
        """Notes how many tokens the cache had."""
        self.n_cached = n_tokens

    def read(self, n_tokens: int) -> None:
        """Notes that the cache has all of the first tokens."""
        self.n_read = max(0, n_tokens - self.n_cached)

    async def run(self, running: Running) -> bool:
        """Runs a request that writes nothing; whether it came to its end."""
        self._running = running
        try:
            running.start()
            await running.completion()
        except ApiError:
            if self.ended is None:
                raise
            return False
        finally:
            self._running = None
            running.cancel()
        return True


class ReadingTurns:
    """The turns that last. Belongs to the event loop's thread."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.layouts = asyncio.Semaphore(1)  # held while a message is laid out and tokenized; nobody waits for it
        self.reading = asyncio.Lock()  # held while a piece is read: the room that the cache has for it stays
        self._turns: dict[tuple[str, str], ReadingTurn] = {}  # by the owner and the address of a client

    @contextmanager
    def take(self, owner: str, address: str) -> Iterator[ReadingTurn]:
        """Holds the turn of a client, in place of the one that it has. Beside an answer it has ended at once."""
        client, turn = (owner, address), ReadingTurn(owner)
        if (before := self._turns.get(client)) is not None:
            before.end("replaced")
        self._turns[client] = turn
        if self._admission.n_open or self._admission.is_draining:
            turn.end("busy")
        try:
            yield turn
        finally:
            if self._turns.get(client) is turn:
                del self._turns[client]

    def give_way(self) -> None:
        """Ends all turns: an answer is wanted."""
        for turn in tuple(self._turns.values()):
            turn.end("busy")
