"""VisiblePages: pages that requests still attend to in sliding windows."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.runtime import PAGE_SIZE, pages_for

if TYPE_CHECKING:
    from woolly.cache.sliding_window import WindowPool
    from woolly.engine.request import Request
    from woolly.engine.step.scheduler_output import SchedulerOutput

Int32 = npt.NDArray[np.int32]


class VisiblePages:
    """Retains the visible pages of running requests in the pool of each sliding window."""

    def __init__(self, pools: Sequence[WindowPool | None]) -> None:
        """`pools` has a pool for each window of `Plan.windows`, or None if the window cache has all pages."""
        self.pools = pools
        self.is_bounded = any(pool is not None for pool in pools)  # if False, every row attends to all pages
        self._retained: dict[Hashable, dict[WindowPool, tuple[int, int]]] = {}  # first page and end

    def start(self, request: Request) -> None:
        """Retain the visible pages of a request's cached prefix."""
        self.move(request, request.pages, request.n_computed, request.n_computed // PAGE_SIZE)

    def prepare(self, scheduled: SchedulerOutput) -> None:
        """Release pages outside the windows, then retain the pages that the rows of a step read and write."""
        if not self.is_bounded:
            return
        for span in scheduled.spans:
            self._leave(span.request, span.request.pages, span.first, span.request.marks)
        for span in scheduled.spans:
            self._enter(span.request, span.request.pages, pages_for(span.first + span.n_rows))

    def trim(self, request: Request, first: int, is_decided: bool) -> None:
        """Release pages that the next step of a request, from position `first`, does not attend to.

        Pages after the computed tokens are also released, unless acceptance of their drafts is undecided.
        """
        if not self.is_bounded:
            return
        self._leave(request, request.pages, first, request.marks)
        if is_decided:
            retained, n_pages = self._retained[request], pages_for(request.n_computed)
            for pool, (begin, end) in retained.items():
                last = max(begin, n_pages)
                if last < end:
                    retained[pool] = begin, last
                    pool.release(request.pages[last:end], keep=False)

    def move(self, user: Hashable, pages: Sequence[int], first: int, n_pages: int) -> None:
        """Retain the visible pages, up to `n_pages`, for rows from position `first`, and release the others."""
        self._leave(user, pages, first)
        self._enter(user, pages, n_pages)

    def end(self, user: Hashable, pages: Sequence[int]) -> None:
        """Release all pages of a user. Their content remains for the next turn of a chat."""
        for pool, (begin, end) in self._retained.pop(user, {}).items():
            pool.release(pages[begin:end], keep=True)

    def tables(self, pages: Int32) -> Int32 | None:
        """Return the page table of each window, or None if all are identical to the full page table."""
        if not self.is_bounded:
            return None
        return np.stack([pages if pool is None else pool.batch_table(pages) for pool in self.pools])

    def _leave(self, user: Hashable, pages: Sequence[int], first: int, marks: Collection[int] = ()) -> None:
        """Release the pages that rows from position `first` do not attend to.

        Pages visible after a token count in `marks` retain their content, because other requests may branch off there.
        """
        retained = self._retained.setdefault(user, {})
        for pool in self.pools:
            if pool is None:
                continue
            begin, end = retained.get(pool, (0, 0))
            # Pages visible after the last full page are retained too: the next turn of a chat continues there.
            seen = pool.first_seen(first // PAGE_SIZE * PAGE_SIZE)
            retained[pool] = seen, max(seen, end)
            for i in range(begin, min(seen, end)):
                is_marked = any(pool.first_seen(mark) <= i < mark // PAGE_SIZE for mark in marks)
                pool.release(pages[i : i + 1], keep=is_marked)

    def _enter(self, user: Hashable, pages: Sequence[int], n_pages: int) -> None:
        """Retain the pages from the first visible page to `n_pages`."""
        retained = self._retained[user]
        for pool, (begin, end) in retained.items():
            if n_pages > end:
                pool.hold(pages[end:n_pages])
                retained[pool] = begin, n_pages
