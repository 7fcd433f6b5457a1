"""GpuState: paged KV cache and recurrent states (slots) on the device.

A page of an entry holds [KV heads][32 positions][columns]. K and V are separate allocations. Columns are padded to the
blocks that kernels read. q8_0 stores an f32 scale per position and 32 columns after the int8 values of a head's page.
q4 stores a bf16 scale after its codes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError, UnsupportedError
from woolly.runtime.options import KV_TYPES, kv_type_pair
from woolly.runtime.state import PAGE_SIZE

if TYPE_CHECKING:
    from woolly.plan import Paged, Plan
    from woolly.runtime.gpu.device import Address, Device

Bytes = npt.NDArray[np.uint8]

_MAX_HEAD_DIM = 576
_STEP = 256  # tokens; suggested cache sizes are multiples of it

# struct Entry of native/cuda/primitives/common.cuh
ENTRY = np.dtype([("k", np.uint64), ("v", np.uint64), ("pages", np.uint64), ("window", np.int32), ("pad", np.int32)])


def room(columns: int, kv_type: str) -> int:
    """Return the number of columns of a head in the cache, including padding."""
    piece = max(16, *(KV_TYPES[part].block for part in kv_type_pair(kv_type)))
    return -(-columns // piece) * piece


def head_bytes(columns: int, kv_type: str, is_value: bool = False) -> int:
    """Return the size in bytes of one K or V head in a page."""
    return int(PAGE_SIZE * room(columns, kv_type) * KV_TYPES[kv_type_pair(kv_type)[is_value]].bits) // 8


@dataclass(frozen=True)
class _Part:
    """Allocation for K, V or the slots of an entry."""

    address: Address
    n_bytes: int  # bytes of a page or slot
    n: int


class GpuState:
    """KV cache pages of `kv_type` and f32 slots. The last reference frees them."""

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
        self._windows: dict[int, int] = {}  # by paged entry: 0 for full attention, else 1 + index in Plan.windows
        self._paged: dict[int, tuple[_Part, _Part | None]] = {}  # K, and V unless it is stored in K
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
        """Return struct Entry for each index in `Plan.state`.

        `tables`: page tables of a batch, for full attention, then for each of `Plan.windows`.
        """
        rows = np.zeros(self._entries, ENTRY)
        for i, (k, v) in self._paged.items():
            rows[i] = k.address, (v or k).address, tables[self._windows[i]], self._windows[i], 0
        return rows

    def slots(self) -> npt.NDArray[np.uint64]:
        """Return slot addresses by index in `Plan.state`, or 0 for paged entries."""
        return np.array([self._slots[i].address if i in self._slots else 0 for i in range(self._entries)], np.uint64)

    def read_page(self, page: int, table: int = 0) -> Bytes:
        """Return a copy of a page of one table."""
        return self._read(self._parts(table), page)

    def write_page(self, page: int, data: Bytes, table: int = 0) -> None:
        """Overwrite a page of one table."""
        self._write(self._parts(table), page, data)

    def read_slot(self, slot: int) -> Bytes:
        """Return a copy of a slot."""
        return self._read(list(self._slots.values()), slot)

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Overwrite a slot."""
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
            raise ValueError(f"{len(data)} bytes are not the size of a page or slot of this state")
        for part in parts:
            self._device.upload(part.address + index * part.n_bytes, data[: part.n_bytes])
            data = data[part.n_bytes :]


def check_heads(plan: Plan) -> None:
    """Raise UnsupportedError if head dimensions exceed the limit of the kernels."""
    for entry in plan.paged.values():
        widest = max(entry.k_dim, entry.v_dim)
        if widest > _MAX_HEAD_DIM:
            raise UnsupportedError(
                f"heads of {widest} columns do not fit the cache of GPUs, which supports up to {_MAX_HEAD_DIM};"
                " use backend='reference'"
            )


def page_bytes(entry: Paged, kv_type: str) -> tuple[int, int]:
    """Return the sizes of a K page and of a V page, in bytes."""
    v = 0 if entry.v_in_k else entry.heads * head_bytes(entry.v_dim, kv_type, is_value=True)
    return entry.heads * head_bytes(entry.k_dim, kv_type), v


def _check(parts: list[_Part], index: int) -> None:
    if any(not 0 <= index < part.n for part in parts):
        raise ValueError(f"page or slot {index} is outside the state")


def _give_back(device: Device, taken: list[Address]) -> None:
    while taken:
        device.free(taken.pop())
