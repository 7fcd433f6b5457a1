"""The WindowPool: pages of entries that see a window of the latest tokens, given back when no request sees them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from woolly.runtime import PAGE_SIZE
from woolly.runtime.state import pages_for_window


class WindowPool:
    """Maps pages of the PagePool to fewer pages of its own, for the entries of a plan with one window.

    A page that some request sees has a page here. A request can continue after a cached text only if the pages that it
    sees there still have one. So the pages before the boundaries at which requests are likely to continue stay when
    no request sees them any more, as long as there is room; the least recently used one gives way.
    """

    def __init__(self, window: int, n_pages: int, n_mapped: int) -> None:
        """`n_pages` hold what all running requests see at once, at least; `n_mapped` is the size of the PagePool."""
        self.window = window
        self.n_pages = n_pages
        self.table = np.full(n_mapped + 1, -1, np.int32)  # by page of the PagePool; the last stands for page -1
        self._users = [0] * n_mapped
        self._blank = list(range(n_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # mapped and without users; least recently used first
        self.early: Container[int] = ()  # pages of text read ahead, which give way first

    @property
    def n_free(self) -> int:
        """Pages that no request sees."""
        return len(self._blank) + len(self._idle)

    def first_seen(self, n_tokens: int) -> int:
        """The first page of a text that the row after some tokens sees."""
        return max(0, n_tokens - self.window + 1) // PAGE_SIZE

    def hold(self, pages: Sequence[int]) -> None:
        """Adds a user to pages, and maps those that are not. ValueError before any change if there is no room."""
        needed = sum(self._users[page] == 0 for page in pages)
        if needed > self.n_free:
            raise ValueError(f"{needed} pages of the window of {self.window} were asked for, {self.n_free} are free")
        for page in pages:
            if self._users[page] == 0:
                if self.table[page] < 0:
                    self.table[page] = self._blank.pop() if self._blank else self._evict()
                else:
                    del self._idle[page]
            self._users[page] += 1

    def release(self, pages: Sequence[int], keep: bool) -> None:
        """Removes a user; pages without users keep their content if `keep`, until room is needed."""
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                if keep:
                    self._idle[page] = None
                else:
                    self._blank.append(int(self.table[page]))
                    self.table[page] = -1

    def put(self, page: int) -> int | None:
        """Maps a page that no request sees to a page of this pool, which the caller fills.

        It gives way like any other that no request sees. None if the page has one, or there is no room.
        """
        if self.table[page] >= 0 or not self.n_free:
            return None
        own = self._blank.pop() if self._blank else self._evict()
        self.table[page] = own
        self._idle[page] = None
        return own

    def touch(self, pages: Sequence[int | None]) -> None:
        """Makes the pages that the row after a text sees the last to give way; None stands for one that is absent."""
        for page in pages[self.first_seen(len(pages) * PAGE_SIZE) :]:
            if page is not None and page in self._idle:
                self._idle.move_to_end(page)

    def drop(self, page: int) -> None:
        """Takes the content of a page that no request sees: the page gets another text."""
        if page in self._idle:
            del self._idle[page]
            self._blank.append(int(self.table[page]))
            self.table[page] = -1

    def resumable(self, pages: Sequence[int]) -> int:
        """The number of leading pages of a text after which a request can continue, at most all."""
        missing = [i for i, page in enumerate(pages) if self.table[page] < 0]
        n = len(pages)
        while missing and n and self.first_seen(n * PAGE_SIZE) <= missing[-1]:
            n = missing[-1]  # no boundary behind a missing page that it sees
            while missing and missing[-1] >= n:
                missing.pop()
        return n

    @staticmethod
    def size(window: int, max_running: int, chunk: int, n_mapped: int, n_drafts: int = 1) -> int:
        """Pages for what `max_running` requests and `logits` see at once, and for two boundaries to continue at.

        All requests together hold the `chunk` rows of one step, and each up to `n_drafts` that are not decided.
        """
        return pages_for_window(window, max_running, chunk, n_mapped, n_drafts)

    def batch_table(self, pages: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The pages of this pool for a table of pages of the PagePool, which is padded with -1."""
        out: npt.NDArray[np.int32] = self.table[pages]
        return out

    def _evict(self) -> int:
        page = next((page for page in self._idle if page in self.early), next(iter(self._idle)))
        del self._idle[page]
        own = int(self.table[page])
        self.table[page] = -1
        return own
