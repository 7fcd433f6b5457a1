"""The Shelf: things of several owners within common bounds, of which nobody can push out those of another."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    owner: str
    thing: T
    n_bytes: int


class Shelf(Generic[T]):
    """Keeps things by id, up to a number of things and of bytes. Belongs to the event loop's thread.

    When a bound is reached, the owner who has most loses the longest unused thing: no owner can push out those of
    another who has less.
    """

    def __init__(self, most: int, max_bytes: int, on_forget: Callable[[str, T], None] = lambda *_: None) -> None:
        """`on_forget` gets the id and the thing that is no longer kept."""
        self._max_entries = most
        self._max_bytes = max_bytes
        self._on_forget = on_forget
        self._entries: dict[str, _Entry[T]] = {}
        self._order: dict[str, OrderedDict[str, None]] = {}  # ids of each owner, the longest unused first
        self._sizes: Counter[str] = Counter()  # bytes of each owner
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def put(self, owner: str, id: str, thing: T, n_bytes: int) -> bool:
        """Keeps a thing, in place of an earlier one of the id; False if it is larger than all that may be kept."""
        if id in self._entries:
            self._take_out(id)
        if n_bytes > self._max_bytes:
            return False
        self._entries[id] = _Entry(owner, thing, n_bytes)
        self._order.setdefault(owner, OrderedDict())[id] = None
        self._sizes[owner] += n_bytes
        self.n_bytes += n_bytes
        while len(self._entries) > self._max_entries:
            self._forget_one(max(self._order, key=lambda one: (len(self._order[one]), one == owner)))
        while self.n_bytes > self._max_bytes:
            self._forget_one(max(self._order, key=lambda one: (self._sizes[one], one == owner)))
        return id in self._entries

    def get(self, owner: str, id: str) -> T | None:
        """Returns a thing of an owner, which is then the latest used; None if there is none."""
        entry = self._entries.get(id)
        if entry is None or entry.owner != owner:
            return None
        self._order[owner].move_to_end(id)
        return entry.thing

    def forget(self, id: str) -> None:
        """Forgets a thing."""
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
        return entry.thing
