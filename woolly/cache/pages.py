"""The PagePool: counts the users of each page of the cache, and keeps unused pages whose text may be needed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from woolly.cache.prefix import PrefixIndex

if TYPE_CHECKING:
    from woolly.cache.windows import WindowPool

_AHEAD = 4  # reading ahead may take one page in four from others


class PagePool:
    """Hands out page numbers and counts their users.

    A page that several requests use, or that is in the prefix index, is full. Full pages are never written again, so
    sharing needs no copy. A page without users keeps its text until its memory is needed; the least recently used
    page is evicted first, and before all others those that were read ahead of a request.
    """

    def __init__(self, n_pages: int, needs_state: bool = False, windows: Sequence[WindowPool] = ()) -> None:
        """Requests continue only where recurrent state (`needs_state`) and the pages of all `windows` are kept too."""
        self.n_pages = n_pages
        self.index = PrefixIndex(4 * n_pages, needs_state, windows)
        for pool in windows:
            pool.early = self.index.early
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

    def room_ahead(self, found: Iterable[int]) -> int:
        """Pages that may be taken to read ahead after those that the index found.

        What is read ahead evicts a quarter of the pool at most, however many texts are read: each takes the place of
        the one before.
        """
        n_early = sum(page in self.index.early for page in found)
        return max(len(self._blank), self.n_pages // _AHEAD - n_early)

    def take(self, n: int, is_early: bool = False) -> list[int]:
        """Takes n pages to write to; the caller has checked `n_free`. Early ones are evicted before others."""
        if n > self.n_free:
            raise ValueError(f"{n} pages were asked for, {self.n_free} are free")
        pages = [self._blank.pop() if self._blank else self._evict() for _ in range(n)]
        for page in pages:
            self._users[page] = 1
        (self.index.early.update if is_early else self.index.early.difference_update)(pages)
        return pages

    def share(self, pages: Sequence[int], is_early: bool = False) -> None:
        """Adds a user to pages that the index found. One that reads ahead leaves pages as early as they are."""
        if not is_early:
            self.index.early.difference_update(pages)
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
        for page in pages:
            if page in self.index.early and page in self._idle:
                self._idle.move_to_end(page, last=False)

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
