"""State of the reference backend: NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from woolly.plan import Plan
from woolly.runtime.state import PAGE_SIZE

Float32 = npt.NDArray[np.float32]


class ReferenceState:
    """K and V of every paged entry, and slots, in f32. The system allocates memory when a page is first written."""

    def __init__(self, plan: Plan, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> None:
        self.n_pages = n_pages
        self.n_slots = n_slots
        self.slot_bytes = plan.bytes_per_sequence
        self.slots = {i: np.zeros((n_slots, entry.numbers), np.float32) for i, entry in plan.slots.items()}
        # [n_pages, PAGE_SIZE, heads, columns] by entry; If V is a part of K, it is a view.
        self.k: dict[int, Float32] = {}
        self.v: dict[int, Float32] = {}
        self.windows: dict[int, int | None] = {}  # index in Plan.windows
        for i, entry in plan.paged.items():
            self.windows[i] = plan.windows.index(entry.window) if entry.window else None
            n_own = window_pages[plan.windows.index(entry.window)] if entry.window and window_pages else n_pages
            shape = (n_own, PAGE_SIZE, entry.heads)
            self.k[i] = np.zeros((*shape, entry.k_dim), np.float32)
            self.v[i] = self.k[i][..., : entry.v_dim] if entry.v_in_k else np.zeros((*shape, entry.v_dim), np.float32)
        self._page_bytes = sum(4 * PAGE_SIZE * entry.width for entry in plan.paged.values())

    @property
    def page_bytes(self) -> int:
        """Size of one page over all entries."""
        return self._page_bytes

    @property
    def n_bytes(self) -> int:
        """Size of all pages and slots, used or not."""
        pages = sum(a.nbytes for arrays in (self.k, self.v) for a in arrays.values() if a.base is None)
        return pages + self.n_slots * self.slot_bytes
