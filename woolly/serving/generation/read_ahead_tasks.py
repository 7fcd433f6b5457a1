"""Read-ahead tasks: one per client, and none while an answer runs."""

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
    """Read-ahead for one client, until a request with a higher priority arrives."""

    def __init__(self, owner: str) -> None:
        self.owner = owner  # owner of the cached prefixes
        self.ended: End | None = None  # reason for an early end
        self.n_cached = 0  # tokens that were already cached
        self.n_read = 0  # tokens cached by this task
        self._running: RunningRequest | None = None

    def end(self, why: End) -> None:
        """End the task; the engine stops a step that has no other request."""
        self.ended = self.ended or why
        if self._running is not None:
            self._running.cancel()

    def found(self, n_tokens: int) -> None:
        """Set the number of tokens that were already cached."""
        self.n_cached = n_tokens

    def read(self, n_tokens: int) -> None:
        """Set the number of tokens that are cached now."""
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
    """Active read-ahead tasks. Use this class only on the event loop thread."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.layouts = asyncio.Semaphore(1)  # limits layout and tokenization to one message; nothing waits for it
        self.reading = asyncio.Lock()  # held during each piece, so that its free cache pages stay available
        self._tasks: dict[tuple[str, str], ReadAheadTask] = {}  # by owner and address of a client

    @contextmanager
    def take(self, owner: str, address: str) -> Iterator[ReadAheadTask]:
        """Register the task of a client, replacing an earlier task.

        The task ends immediately if an answer is running.
        """
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
        """End all tasks because a request has arrived."""
        for task in tuple(self._tasks.values()):
            task.end("busy")
