"""The GpuState: keys and values of past tokens in pages on the device, and slots.

A page of an entry holds 32 positions of every KV head, head after head, position after position; its V lies in memory
of its own. Heads are filled up to whole pieces that kernels read at once. q8_0 keeps, behind the whole numbers of a
head's page, an f32 scale for each position and 32 columns; q4 keeps one in bf16 behind its codes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError, UnsupportedError
from woolly.runtime.options import KV_TYPES, kept_as
from woolly.runtime.state import PAGE_SIZE

if TYPE_CHECKING:
    from woolly.plan import Paged, Plan
    from woolly.runtime.gpu.device import Address, Device

Bytes = npt.NDArray[np.uint8]

_MAX_HEAD_DIM = 576
_STEP = 256  # tokens; rounds what would fit

# struct Entry of native/cuda/primitives/common.cuh
ENTRY = np.dtype([("k", np.uint64), ("v", np.uint64), ("pages", np.uint64), ("window", np.int32), ("pad", np.int32)])


def room(columns: int, kv_type: str) -> int:
    """Columns that a head takes in the cache."""
    piece = max(16, *(KV_TYPES[part].block for part in kept_as(kv_type)))
    return -(-columns // piece) * piece


def head_bytes(columns: int, kv_type: str, is_value: bool = False) -> int:
    """Bytes of one head of K, or of V, in a page."""
    return int(PAGE_SIZE * room(columns, kv_type) * KV_TYPES[kept_as(kv_type)[is_value]].bits) // 8


@dataclass(frozen=True)
class _Part:
    """K or V of an entry, or the numbers of one in slots: pieces of one size."""

    address: Address
    n_bytes: int  # of a page or slot
    n: int


class GpuState:
    """K and V of every paged entry in pages of `kv_type`, and slots in f32. The last reference frees it."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        n_pages: int,
        kv_type: str,
        n_slots: int = 0,
        window_pages: Sequence[int] = (),
    ) -> None:
        check_heads(plan)
        self.n_pages = n_pages
        self.n_slots = n_slots
        self.kv_type = kv_type
        self.window_pages = tuple(window_pages) or (n_pages,) * len(plan.windows)
        self.is_portable = True
        self.slot_bytes = plan.bytes_per_sequence
        self._device = device
        self._entries = len(plan.state)
        self._windows: dict[int, int] = {}  # of a paged entry: 0 sees all, else 1 + its index in Plan.windows
        self._paged: dict[int, tuple[_Part, _Part | None]] = {}  # K, and V unless it is a part of K
        self._slots: dict[int, _Part] = {}
        sizes: dict[int, tuple[int, int, int]] = {}  # pages, and bytes of a page of K and of V
        for i, entry in plan.paged.items():
            n_own = n_pages
            self._windows[i] = 1 + plan.windows.index(entry.window) if entry.window else 0
            if entry.window and window_pages:
                n_own = window_pages[self._windows[i] - 1]
            sizes[i] = n_own, *page_bytes(entry, kv_type)
        self.page_bytes = sum(k + v for _, k, v in sizes.values())
        of = self._windows
        self.page_sizes = tuple(
            sum(k + v for i, (_, k, v) in sizes.items() if of[i] == table) for table in range(1 + len(plan.windows))
        )
        self.n_bytes = sum(n * (k + v) for n, k, v in sizes.values()) + n_slots * self.slot_bytes
        taken: list[Address] = []
        self._release = weakref.finalize(self, _give_back, device, taken)
        try:
            for i, (n, k, v) in sizes.items():
                self._paged[i] = self._part(taken, n, k), self._part(taken, n, v) if v else None
            for i, slot in plan.slots.items() if n_slots else ():
                self._slots[i] = self._part(taken, n_slots, 4 * slot.numbers)
        except RequestError:
            self._release()
            n_tokens, free = n_pages * PAGE_SIZE, device.memory()[0]
            growing = sum(k + v for n, k, v in sizes.values() if n == n_pages)
            left = max(0, free - self.n_bytes + n_pages * growing)
            fitting = left // max(1, growing) * PAGE_SIZE // _STEP * _STEP
            raise RequestError(
                f"a cache of {n_tokens} tokens takes {self.n_bytes / 1e9:,.1f} GB, but the GPU has"
                f" {free / 1e9:,.1f} GB free; lower ctx or kv_tokens"
                + (f": {fitting} tokens would fit" if fitting < n_tokens else ""),
                field="kv_tokens",
                names=("ctx", "kv_tokens"),
            ) from None

    def _part(self, taken: list[Address], n: int, n_bytes: int) -> _Part:
        address = self._device.allocate(max(1, n * n_bytes))
        taken.append(address)
        self._device.zero(address, n * n_bytes)
        return _Part(address, n_bytes, n)

    def entries(self, tables: Sequence[Address]) -> npt.NDArray[np.void]:
        """Rows of struct Entry by index in `Plan.state`.

        `tables` are the page tables of a batch: for entries that see all tokens, then for each of `Plan.windows`.
        """
        rows = np.zeros(self._entries, ENTRY)
        for i, (k, v) in self._paged.items():
            rows[i] = k.address, (v or k).address, tables[self._windows[i]], self._windows[i], 0
        return rows

    def slots(self) -> npt.NDArray[np.uint64]:
        """Addresses of slots by index in `Plan.state`; 0 for entries in pages."""
        return np.array([self._slots[i].address if i in self._slots else 0 for i in range(self._entries)], np.uint64)

    def read_page(self, page: int, table: int = 0) -> Bytes:
        """A copy of a page of one table."""
        return self._read(self._parts(table), page)

    def write_page(self, page: int, data: Bytes, table: int = 0) -> None:
        """Overwrites a page of one table with a copy."""
        self._write(self._parts(table), page, data)

    def read_slot(self, slot: int) -> Bytes:
        """A copy of a slot."""
        return self._read(list(self._slots.values()), slot)

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Overwrites a slot with a copy."""
        self._write(list(self._slots.values()), slot, data)

    def _parts(self, table: int) -> list[_Part]:
        return [part for i, pair in self._paged.items() if self._windows[i] == table for part in pair if part]

    def _read(self, parts: list[_Part], index: int) -> Bytes:
        _check(parts, index)
        pieces = [np.empty(part.n_bytes, np.uint8) for part in parts]
        for part, piece in zip(parts, pieces, strict=True):
            self._device.download(part.address + index * part.n_bytes, piece)
        self._device.wait()
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)

    def _write(self, parts: list[_Part], index: int, data: Bytes) -> None:
        _check(parts, index)
        data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        if len(data) != sum(part.n_bytes for part in parts):
            raise ValueError(f"{len(data)} bytes are not what a page or slot of this state has")
        for part in parts:
            self._device.upload(part.address + index * part.n_bytes, data[: part.n_bytes])
            data = data[part.n_bytes :]


def check_heads(plan: Plan) -> None:
    """Refuses a plan whose heads are longer than the kernels take."""
    for entry in plan.paged.values():
        widest = max(entry.k_dim, entry.v_dim)
        if widest > _MAX_HEAD_DIM:
            raise UnsupportedError(
                f"heads of {widest} do not fit the cache of GPUs, which takes heads of up to {_MAX_HEAD_DIM};"
                " use backend='reference'"
            )


def page_bytes(entry: Paged, kv_type: str) -> tuple[int, int]:
    """Bytes of a page of K, and of V."""
    v = 0 if entry.v_in_k else entry.heads * head_bytes(entry.v_dim, kv_type, is_value=True)
    return entry.heads * head_bytes(entry.k_dim, kv_type), v


def _check(parts: list[_Part], index: int) -> None:
    if any(not 0 <= index < part.n for part in parts):
        raise ValueError(f"page or slot {index} is outside the state")


def _give_back(device: Device, taken: list[Address]) -> None:
    while taken:
        device.free(taken.pop())
