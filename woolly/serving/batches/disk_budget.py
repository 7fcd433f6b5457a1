"""Remaining disk space of a running batch."""

from __future__ import annotations

import time

from woolly.serving.batches.store import BatchStore

_EVERY = 1.0  # seconds between disk checks; other requests of the owner need space too


class DiskBudget:
    """Disk space available to the owner of a batch. Each answer is stored twice: in the journal and in the output."""

    def __init__(self, store: BatchStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._left = 0
        self._asked: float | None = None

    def take(self, n_bytes: int) -> None:
        """Reserve space for a line of the journal. Raises ApiError 413 if the space is insufficient."""
        wanted, now = 2 * n_bytes, time.monotonic()
        if self._asked is None or wanted > self._left or now - self._asked > _EVERY:
            self._left, self._asked = self._store.check_room(self._owner, wanted), now
        self._left -= wanted
