"""The PagePool: who uses which page of the cache, and which unused ones still hold text that may come again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from woolly.engine.prefix import PrefixIndex

__all__ = ["PagePool"]


class PagePool:
    """Hands out page numbers and counts their users.

    A page that is used by several sequences, or that the index knows, is full: full pages are never written again, so
    sharing needs no copy. A page that nobody uses keeps its text until the room is needed, the one least recently
    used going first.
    """

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self.index = PrefixIndex(most_ghosts=4 * n_pages)
        self._users = [0] * n_pages
        self._blank = list(range(n_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # known to the index, used by nobody; oldest first

    @property
    def n_free(self) -> int:
        """Pages that nobody uses, those with text that may come again included."""
        return len(self._blank) + len(self._idle)

    def n_users(self, page: int) -> int:
        """How many sequences use a page."""
        return self._users[page]

    def take(self, n: int) -> list[int]:
        """N pages to be written; the caller has checked `n_free`."""
        if n > self.n_free:
            raise ValueError(f"{n} pages were asked for, {self.n_free} are free")
        pages = [self._blank.pop() if self._blank else self._evict() for _ in range(n)]
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more user of pages that the index gave."""
        for page in pages:
            if self._users[page] == 0:
                del self._idle[page]
            self._users[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """One user less. The last page goes first: a page is found only through those before it."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page] > 0:
                continue
            if self.index.knows(page):
                self._idle[page] = None
            else:
                self._blank.append(page)

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self.index.forget(page)
        return page
