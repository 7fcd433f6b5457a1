"""CpuState: keys and values of past tokens in native pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from woolly import _native
from woolly.errors import RequestError, UnsupportedError
from woolly.plan import Paged, Plan
from woolly.runtime.state import PAGE_SIZE

Bytes = npt.NDArray[np.uint8]

_MAX_HEAD_DIM = 576


class CpuState:
    """K and V of every paged entry in native pages, and slots in f32."""

    def __init__(
        self, plan: Plan, n_pages: int, kv_type: str, n_slots: int = 0, window_pages: Sequence[int] = ()
    ) -> None:
        self.n_pages = n_pages
        self.n_slots = n_slots
        self.is_portable = True
        self.slot_bytes = plan.bytes_per_sequence
        # Native code numbers entries like the plan; entries without pages have no heads.
        entries = [plan.paged.get(i, Paged(0, 1, 1)) for i in range(len(plan.state))]
        layers = [(entry.heads, entry.k_dim, 0 if entry.v_in_k else entry.v_dim) for entry in entries]
        try:
            self.native = _native.Cache(kv_type, n_pages, layers)
            self.page_bytes = self.native.page_bytes
            self.page_sizes: tuple[int, ...] = (self.page_bytes,)
            self._entries: list[tuple[list[int], ...]] = [()]  # by table; a plan without windows has one table
            if plan.windows:
                own = [[i for i, e in plan.paged.items() if e.window == window] for window in (0, *plan.windows)]
                self._entries = [(table,) for table in own]
                self.page_sizes = tuple(self.native.bytes_of(table) for table in own)
            for i, entry in plan.paged.items() if window_pages else ():
                if entry.window and window_pages[table := plan.windows.index(entry.window)] < n_pages:
                    self.native.set_window(i, table, entry.window, window_pages[table])
            if plan.slots:
                numbers = [plan.slots[i].numbers if i in plan.slots else 0 for i in range(len(plan.state))]
                self.native.add_slots(n_slots, numbers)
        except (MemoryError, TypeError):  # TypeError: more pages than a native integer holds
            n_tokens = n_pages * PAGE_SIZE
            n_bytes = plan.bytes_per_token(_native.kv_value_bytes(kv_type)) * n_tokens + n_slots * self.slot_bytes
            gigabytes = n_bytes / 1e9
            raise RequestError(
                f"a cache of {n_tokens} tokens takes {gigabytes:,.1f} GB, more than is available;"
                " lower ctx or kv_tokens",
                field="kv_tokens",
                names=("ctx", "kv_tokens"),
            ) from None

    @property
    def n_bytes(self) -> int:
        """Size of all pages and slots, used or not."""
        return self.native.n_bytes

    def read_page(self, page: int, table: int = 0) -> Bytes:
        """Return a copy of a page of one table."""
        out = np.empty(self.page_sizes[table], np.uint8)
        self.native.read_page(page, out, *self._entries[table])
        return out

    def write_page(self, page: int, data: Bytes, table: int = 0) -> None:
        """Overwrite a page of one table with a copy."""
        self.native.write_page(page, data, *self._entries[table])

    def read_slot(self, slot: int) -> Bytes:
        """Return a copy of a slot."""
        out = np.empty(self.native.slot_bytes, np.uint8)
        self.native.read_slot(slot, out)
        return out

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Overwrite a slot with a copy."""
        self.native.write_slot(slot, data)


def check_heads(plan: Plan) -> None:
    """Raise UnsupportedError if heads are larger than the kernels support."""
    for entry in plan.paged.values():
        widest = max(entry.k_dim, entry.v_dim)
        if widest > _MAX_HEAD_DIM:
            raise UnsupportedError(
                f"heads of {widest} columns do not fit the cache of the CPU backend, which supports up to"
                f" {_MAX_HEAD_DIM}; use backend='reference'"
            )
