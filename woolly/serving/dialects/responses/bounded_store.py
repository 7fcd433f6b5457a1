"""LRU cache shared by several owners, with fair eviction."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    owner: str
    value: T
    n_bytes: int


class BoundedStore(Generic[T]):
    """LRU cache by id, limited in entries and bytes. Use this class only on the event loop thread.

    At a limit, the owner with the most entries (or bytes) loses its least recently used value, so owners cannot evict
    values of owners with fewer.
    """

    def __init__(self, most: int, max_bytes: int, on_forget: Callable[[str, T], None] = lambda *_: None) -> None:
        """`on_forget(id, value)` is called after each eviction."""
        self._max_entries = most
        self._max_bytes = max_bytes
        self._on_forget = on_forget
        self._entries: dict[str, _Entry[T]] = {}
        self._order: dict[str, OrderedDict[str, None]] = {}  # ids by owner, least recently used first
        self._sizes: Counter[str] = Counter()  # bytes by owner
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def put(self, owner: str, id: str, value: T, n_bytes: int) -> bool:
        """Store or replace a value. Returns False if the value exceeds the byte limit of the store."""
        if id in self._entries:
            self._take_out(id)
        if n_bytes > self._max_bytes:
            return False
        self._entries[id] = _Entry(owner, value, n_bytes)
        self._order.setdefault(owner, OrderedDict())[id] = None
        self._sizes[owner] += n_bytes
        self.n_bytes += n_bytes
        while len(self._entries) > self._max_entries:
            self._forget_one(max(self._order, key=lambda one: (len(self._order[one]), one == owner)))
        while self.n_bytes > self._max_bytes:
            self._forget_one(max(self._order, key=lambda one: (self._sizes[one], one == owner)))
        return id in self._entries

    def get(self, owner: str, id: str) -> T | None:
        """Return a value and mark it as used, or None if the owner has no such id."""
        entry = self._entries.get(id)
        if entry is None or entry.owner != owner:
            return None
        self._order[owner].move_to_end(id)
        return entry.value

    def forget(self, id: str) -> None:
        """Remove a value."""
        self._on_forget(id, self._take_out(id))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def _forget_one(self, owner: str) -> None:
        self.forget(next(iter(self._order[owner])))

    def _take_out(self, id: str) -> T:
        entry = self._entries.pop(id)
        self.n_bytes -= entry.n_bytes
        self._sizes[entry.owner] -= entry.n_bytes
        del self._order[entry.owner][id]
        if not self._order[entry.owner]:
            del self._order[entry.owner], self._sizes[entry.owner]
        return entry.value
