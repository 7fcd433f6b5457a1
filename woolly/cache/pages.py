"""PagePool: allocation, reference counts and LRU eviction of cache pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from woolly.cache.prefix import PrefixIndex

if TYPE_CHECKING:
    from woolly.cache.sliding_window import WindowPool

_AHEAD = 4  # prefetching may evict a quarter of the pool


class PagePool:
    """Allocates page numbers and counts their users.

    Shared pages and pages in the prefix index are full and never written again, so sharing needs no copy. A page
    without users retains its content until its memory is needed. The least recently used page is evicted first,
    prefetched pages before all others.
    """

    def __init__(self, n_pages: int, needs_state: bool = False, windows: Sequence[WindowPool] = ()) -> None:
        """With `needs_state` and `windows`, a prefix is only reusable together with its recurrent state and window
        pages.
        """
        self.n_pages = n_pages
        self.index = PrefixIndex(4 * n_pages, needs_state, windows)
        for pool in windows:
            pool.early = self.index.early
        self._users = [0] * n_pages
        self._blank = list(range(n_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # indexed pages without users, in LRU order

    @property
    def n_free(self) -> int:
        """Number of pages without users."""
        return len(self._blank) + len(self._idle)

    def n_users(self, page: int) -> int:
        """Return the number of requests that use a page."""
        return self._users[page]

    def room_ahead(self, found: Iterable[int]) -> int:
        """Return the number of pages that may be prefetched in addition to the found pages.

        Prefetching evicts at most a quarter of the pool, regardless of the number of prompts.
        """
        n_early = sum(page in self.index.early for page in found)
        return max(len(self._blank), self.n_pages // _AHEAD - n_early)

    def take(self, n: int, is_early: bool = False) -> list[int]:
        """Allocate n pages, at most `n_free`. Early (prefetched) pages are evicted first."""
        if n > self.n_free:
            raise ValueError(f"requested {n} pages, but only {self.n_free} are free")
        pages = [self._blank.pop() if self._blank else self._evict() for _ in range(n)]
        for page in pages:
            self._users[page] = 1
        (self.index.early.update if is_early else self.index.early.difference_update)(pages)
        return pages

    def share(self, pages: Sequence[int], is_early: bool = False) -> None:
        """Add a user to indexed pages. Prefetching keeps early pages early."""
        if not is_early:
            self.index.early.difference_update(pages)
        for page in pages:
            if self._users[page] == 0:
                del self._idle[page]
            self._users[page] += 1

    def publish(self, page: int, parent: bytes, digest: bytes, tokens: Sequence[int]) -> None:
        """Add a full page to the prefix index."""
        replaced = self.index.add(page, parent, digest, tokens)
        if replaced is not None and self._users[replaced] == 0:
            del self._idle[replaced]
            self._blank.append(replaced)

    def give_back(self, pages: Sequence[int]) -> None:
        """Remove a user, starting with the last page, because a page can only be found through the pages before it."""
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
        """Remove unused pages from the index; return their number."""
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
