"""SlotPool: allocation, reference counts and LRU eviction of recurrent state slots."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.cache.prefix import PrefixIndex


class SlotPool:
    """Allocates slot numbers and counts their users.

    A slot is blank, in use, or an idle snapshot, which the prefix index finds by the digest of its page. A run never
    writes a slot that it reads, so requests share snapshots without a copy. If no slot is blank, the least recently
    used idle snapshot is evicted, prefetched snapshots before all others.
    """

    def __init__(self, n_slots: int, index: PrefixIndex) -> None:
        self.n_slots = n_slots
        self._index = index
        self._users = [0] * n_slots
        # Reuse the last released slot first: unused slots take no memory.
        self._blank = list(range(n_slots - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # snapshots without users, in LRU order
        index.on_lost_state = self._lose

    @property
    def n_free(self) -> int:
        """Number of slots without users."""
        return len(self._blank) + len(self._idle)

    def n_users(self, slot: int) -> int:
        """Return the number of requests that use a slot."""
        return self._users[slot]

    def take(self) -> int:
        """Allocate a slot; `n_free` must be positive."""
        if not self._blank:
            if not self._idle:
                raise ValueError(f"all {self.n_slots} slots are in use")
            early = (slot for slot in self._idle if self._index.is_early(slot))
            self._index.forget_state(next(early, next(iter(self._idle))))
        slot = self._blank.pop()
        self._users[slot] = 1
        return slot

    def share(self, slot: int) -> None:
        """Add a user to a snapshot in the index."""
        if self._users[slot] == 0:
            del self._idle[slot]
        self._users[slot] += 1

    def give_back(self, slot: int) -> None:
        """Remove a user. A snapshot without users becomes idle."""
        self._users[slot] -= 1
        if self._users[slot] == 0:
            if self._index.is_snapshot(slot):
                self._idle[slot] = None
            else:
                self._blank.append(slot)

    def discard(self, slot: int) -> None:
        """Drop a replaced snapshot, unless a request uses it."""
        if slot in self._idle:
            self._index.forget_state(slot, is_evicted=False)

    def _lose(self, slot: int) -> None:
        """Mark a slot as blank."""
        if slot in self._idle:
            del self._idle[slot]
            self._blank.append(slot)
