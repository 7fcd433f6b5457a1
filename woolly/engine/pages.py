"""The PageAllocator: which pages of the cache are free."""

from __future__ import annotations

__all__ = ["PageAllocator"]


class PageAllocator:
    """Hands out page numbers; each is owned by one sequence at a time."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self._free = list(range(n_pages - 1, -1, -1))

    @property
    def n_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def take(self, n: int) -> list[int]:
        """N pages; the caller has checked `n_free`."""
        if n > len(self._free):
            raise ValueError(f"{n} pages were asked for, {len(self._free)} are free")
        return [self._free.pop() for _ in range(n)]

    def give_back(self, pages: list[int]) -> None:
        """Frees pages."""
        self._free.extend(reversed(pages))
