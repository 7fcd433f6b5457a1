"""WindowPool: pages of sliding-window entries, which are released when they leave the windows of all requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from woolly.runtime import PAGE_SIZE
from woolly.runtime.state import pages_for_window


class WindowPool:
    """Maps pages of the PagePool to fewer pages, for the cache entries of one window size.

    Pages in the window of a request are mapped. A request can only continue after a cached prefix if the pages in its
    window are still mapped. Pages before likely branching points therefore remain mapped without users until room is
    needed; the least recently used page is evicted first.
    """

    def __init__(self, window: int, n_pages: int, n_mapped: int) -> None:
        """`n_pages` must cover the windows of all running requests; `n_mapped` is the size of the PagePool."""
        self.window = window
        self.n_pages = n_pages
        self.table = np.full(n_mapped + 1, -1, np.int32)  # by page of the PagePool; the last entry is for page -1
        self._users = [0] * n_mapped
        self._blank = list(range(n_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # mapped pages without users, in LRU order
        self.early: Container[int] = ()  # prefetched pages, evicted first

    @property
    def n_free(self) -> int:
        """Number of pages without users."""
        return len(self._blank) + len(self._idle)

    def first_seen(self, n_tokens: int) -> int:
        """Return the first page in the window of the row after n_tokens."""
        return max(0, n_tokens - self.window + 1) // PAGE_SIZE

    def hold(self, pages: Sequence[int]) -> None:
        """Add a user to pages, and map unmapped ones. Raise ValueError, without any change, if there is no room."""
        needed = sum(self._users[page] == 0 for page in pages)
        if needed > self.n_free:
            raise ValueError(f"requested {needed} pages of window {self.window}, but only {self.n_free} are free")
        for page in pages:
            if self._users[page] == 0:
                if self.table[page] < 0:
                    self.table[page] = self._blank.pop() if self._blank else self._evict()
                else:
                    del self._idle[page]
            self._users[page] += 1

    def release(self, pages: Sequence[int], keep: bool) -> None:
        """Remove a user. If `keep`, pages without users retain their content until room is needed."""
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                if keep:
                    self._idle[page] = None
                else:
                    self._blank.append(int(self.table[page]))
                    self.table[page] = -1

    def put(self, page: int) -> int | None:
        """Map an unused page to a page of this pool, which the caller fills.

        The page may be evicted like any unused page. Return None if it is already mapped or if there is no room.
        """
        if self.table[page] >= 0 or not self.n_free:
            return None
        own = self._blank.pop() if self._blank else self._evict()
        self.table[page] = own
        self._idle[page] = None
        return own

    def touch(self, pages: Sequence[int | None]) -> None:
        """Mark the pages in the window after a prompt as most recently used. None stands for a missing page."""
        for page in pages[self.first_seen(len(pages) * PAGE_SIZE) :]:
            if page is not None and page in self._idle:
                self._idle.move_to_end(page)

    def drop(self, page: int) -> None:
        """Unmap an unused page before its content changes."""
        if page in self._idle:
            del self._idle[page]
            self._blank.append(int(self.table[page]))
            self.table[page] = -1

    def resumable(self, pages: Sequence[int]) -> int:
        """Return the number of leading pages of a prompt after which a request can continue."""
        missing = [i for i, page in enumerate(pages) if self.table[page] < 0]
        n = len(pages)
        while missing and n and self.first_seen(n * PAGE_SIZE) <= missing[-1]:
            n = missing[-1]  # no boundary whose window includes a missing page
            while missing and missing[-1] >= n:
                missing.pop()
        return n

    @staticmethod
    def size(window: int, max_running: int, chunk: int, n_mapped: int, n_drafts: int = 1) -> int:
        """Return the number of pages for the windows of `max_running` requests and `logits`, and for two boundaries.

        All requests together have the `chunk` rows of a step, and each request up to `n_drafts` undecided draft rows.
        """
        return pages_for_window(window, max_running, chunk, n_mapped, n_drafts)

    def batch_table(self, pages: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the page table of this pool for a page table of the PagePool, padded with -1."""
        out: npt.NDArray[np.int32] = self.table[pages]
        return out

    def _evict(self) -> int:
        page = next((page for page in self._idle if page in self.early), next(iter(self._idle)))
        del self._idle[page]
        own = int(self.table[page])
        self.table[page] = -1
        return own
