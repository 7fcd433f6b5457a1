"""ReadAheadTasks: one read-ahead per client, none while an answer runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from woolly.serving.errors import ApiError
from woolly.serving.generation.admission import Admission
from woolly.serving.generation.running_request import RunningRequest

End = Literal["busy", "replaced", "unloaded", "media", "full", "limit"]


class ReadAheadTask:
    """Read-ahead of one client, until more important work arrives."""

    def __init__(self, owner: str) -> None:
        self.owner = owner  # whose prefixes it reads
        self.ended: End | None = None  # why it ended early
        self.n_cached = 0  # tokens that the cache had
        self.n_read = 0  # tokens that it has since
        self._running: RunningRequest | None = None

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

    async def run(self, running: RunningRequest) -> bool:
        """Run a request without output; return True if it finished."""
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


class ReadAheadTasks:
    """The tasks that last. Belongs to the event loop's thread."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.layouts = asyncio.Semaphore(1)  # held while a message is laid out and tokenized; nobody waits for it
        self.reading = asyncio.Lock()  # held while a piece is read: the room that the cache has for it stays
        self._tasks: dict[tuple[str, str], ReadAheadTask] = {}  # by the owner and the address of a client

    @contextmanager
    def take(self, owner: str, address: str) -> Iterator[ReadAheadTask]:
        """Register the task of a client, replacing its earlier one. While an answer runs, it ends immediately."""
        client, task = (owner, address), ReadAheadTask(owner)
        if (before := self._tasks.get(client)) is not None:
            before.end("replaced")
        self._tasks[client] = task
        if self._admission.n_open or self._admission.is_draining:
            task.end("busy")
        try:
            yield task
        finally:
            if self._tasks.get(client) is task:
                del self._tasks[client]

    def cancel_all(self) -> None:
        """Ends all tasks: an answer is wanted."""
        for task in tuple(self._tasks.values()):
            task.end("busy")
