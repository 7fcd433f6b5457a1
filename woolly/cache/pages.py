"""The PagePool: counts the users of each page of the cache, and keeps unused pages whose text may be needed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from woolly.cache.prefix import PrefixIndex
from woolly.cache.windows import WindowPool

__all__ = ["PagePool"]


class PagePool:
    """Hands out page numbers and counts their users.

    A page that several requests use, or that is in the prefix index, is full. Full pages are never written again, so
    sharing needs no copy. A page without users keeps its text until its memory is needed; the least recently used
    page is evicted first.
    """

    def __init__(self, n_pages: int, needs_state: bool = False, windows: Sequence[WindowPool] = ()) -> None:
        """Requests continue only where recurrent state (`needs_state`) and the pages of all `windows` are kept too."""
        self.n_pages = n_pages
        self.index = PrefixIndex(4 * n_pages, needs_state, windows)
        self._users = [0] * n_pages
        self._blank = list(range(n_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # in the index and without users; least recently used first

    @property
    def n_free(self) -> int:
        """Pages without users, in the index or not."""
        return len(self._blank) + len(self._idle)

    def n_users(self, page: int) -> int:
        """The number of requests that use a page."""
        return self._users[page]

    def take(self, n: int) -> list[int]:
        """Takes n pages to write to; the caller has checked `n_free`."""
        if n > self.n_free:
            raise ValueError(f"{n} pages were asked for, {self.n_free} are free")
        pages = [self._blank.pop() if self._blank else self._evict() for _ in range(n)]
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds a user to pages that the index found."""
        for page in pages:
            if self._users[page] == 0:
                del self._idle[page]
            self._users[page] += 1

    def publish(self, page: int, parent: bytes, digest: bytes, tokens: Sequence[int]) -> None:
        """Adds a full page to the prefix index."""
        replaced = self.index.add(page, parent, digest, tokens)
        if replaced is not None and self._users[replaced] == 0:
            del self._idle[replaced]
            self._blank.append(replaced)

    def give_back(self, pages: Sequence[int]) -> None:
        """Removes a user. Goes from the last page to the first: a page is found only through those before it."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page] > 0:
                continue
            if self.index.knows(page):
                self._idle[page] = None
            else:
                self._blank.append(page)

    def forget(self, pages: Sequence[int]) -> int:
        """Blanks those of the pages that have no users, and returns their number."""
        idle = [page for page in pages if page in self._idle]
        for page in reversed(idle):
            del self._idle[page]
            self.index.forget(page)
            self._blank.append(page)
        return len(idle)

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self.index.forget(page)
        return page
