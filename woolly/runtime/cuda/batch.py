"""The BatchSlot: where kernels find the batch of a run. One copy brings all of it to the device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from woolly.plan import Plan
from woolly.runtime.batch import Batch
from woolly.runtime.cuda.device import Address, Device
from woolly.runtime.state import PAGE_SIZE
from woolly.runtime.turns import Turns

__all__ = ["BATCH", "MAX_CONTEXT", "BatchSlot", "Places", "check_batch"]

MAX_CONTEXT = 1 << 20

# struct Batch of native/cuda/common.cuh.
_COUNTS = ["n_rows", "n_sequences", "n_output", "max_pages", "n_keeps", "n_adapters", "is_hidden_normed", "n_longest"]
_POINTERS = (
    *("tokens", "positions", "sequences", "offsets", "output_rows", "slots_in", "slots_out", "keeps"),
    *("adapters", "hidden", "cosines", "sines", "slots", "entries"),
)
BATCH = np.dtype(
    [
        *((name, np.int32) for name in _COUNTS),
        *((name, np.uint64) for name in _POINTERS),
        ("n_turns", np.int32),
        ("pad", np.int32),
    ]
)

_ALIGNMENT = 16
# Room for the arrays of most batches; longer page tables get memory of their own.
_BODY = 1 << 18


class Places(Protocol):
    """What a batch needs of a state: where its pages and slots are."""

    @property
    def n_pages(self) -> int:
        """Pages, used or not."""

    @property
    def window_pages(self) -> Sequence[int]:
        """Pages of the entries of each window of the plan."""

    @property
    def n_slots(self) -> int:
        """Slots, used or not."""

    def entries(self, tables: Sequence[Address]) -> npt.NDArray[Any]:
        """Rows of struct Entry; `tables` are the page tables of all tokens, then of each window."""

    def slots(self) -> npt.NDArray[np.uint64]:
        """Addresses of the slots of each entry."""


class BatchSlot:
    """Memory for one batch at a time. Its address never changes: recorded launches name it."""

    def __init__(self, device: Device, turns: Turns) -> None:
        self._device = device
        self._turns = turns
        self.address = device.allocate(BATCH.itemsize + _ALIGNMENT + _BODY)
        self._body = self.address + -(-BATCH.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._large: Address | None = None
        self._large_bytes = 0
        self._tables: tuple[Address, Address] | None = None
        self._n_positions = 0
        self._entries: tuple[weakref.ref[Places], tuple[Address, ...], npt.NDArray[Any]] | None = None

    def fill(self, batch: Batch, state: Places, plan: Plan) -> None:
        """Queues the upload of a batch for a plan over a state."""
        longest = int(batch.positions.max()) + 1
        cosines, sines = self._turn_tables(longest)
        arrays: dict[str, npt.NDArray[Any]] = {
            "tokens": batch.tokens,
            "positions": batch.positions,
            "sequences": np.repeat(np.arange(batch.n_sequences, dtype=np.int32), np.diff(batch.offsets)),
            "offsets": batch.offsets,
            "output_rows": batch.output_rows,
            "slots_in": batch.slots_in,
            "slots_out": batch.slots_out,
            "keeps": batch.keeps,
            "slots": state.slots(),
        }
        if batch.adapters is not None:
            arrays["adapters"] = np.asarray(batch.adapters, np.float32)
        if batch.hidden is not None:
            arrays["hidden"] = np.asarray(batch.hidden, np.float32)
        tables = [batch.table(window) for window in (None, *range(len(plan.windows)))]
        blob = _Blob()
        at = {name: blob.add(array) for name, array in arrays.items() if array.size}
        at_tables = [blob.add(table) for table in tables]
        at["entries"] = blob.reserve(len(plan.state) * 32)
        base = self._room(blob.n_bytes)
        entries = self._entry_rows(state, tuple(base + place for place in at_tables))
        struct = np.zeros(1, BATCH)
        struct["n_rows"], struct["n_sequences"] = batch.n_rows, batch.n_sequences
        struct["n_output"], struct["max_pages"] = len(batch.output_rows), batch.pages.shape[1]
        struct["n_keeps"], struct["n_longest"] = len(batch.keeps), longest
        struct["n_adapters"] = 0 if batch.adapters is None else batch.adapters.shape[1]
        struct["is_hidden_normed"] = batch.is_hidden_normed
        struct["cosines"], struct["sines"], struct["n_turns"] = cosines, sines, self._turns.cosines.shape[1]
        for name, place in at.items():
            struct[name] = base + place
        head = int(self._body) - int(self.address)
        is_small = base == self._body
        data = np.zeros(head + (blob.n_bytes if is_small else 0), np.uint8)
        data[: BATCH.itemsize] = struct.view(np.uint8)
        body = data[head:] if is_small else np.zeros(blob.n_bytes, np.uint8)
        blob.write(body)
        body[at["entries"] : at["entries"] + entries.nbytes] = entries.view(np.uint8)
        self._device.upload(self.address, data)
        if not is_small:
            self._device.upload(base, body)

    def _entry_rows(self, state: Places, tables: tuple[Address, ...]) -> npt.NDArray[Any]:
        """The state's rows; those of the last run if nothing moved, as in most steps of a generation."""
        kept = self._entries
        if kept is None or kept[0]() is not state or kept[1] != tables:
            kept = self._entries = (weakref.ref(state), tables, state.entries(tables))
        return kept[2]

    def _room(self, n_bytes: int) -> Address:
        if n_bytes <= _BODY:
            return self._body
        if self._large is None or n_bytes > self._large_bytes:
            if self._large is not None:
                self._device.free(self._large)
            self._large_bytes = 2 * n_bytes
            self._large = self._device.allocate(self._large_bytes)
        return self._large

    def _turn_tables(self, n: int) -> tuple[Address, Address]:
        self._turns.extend(n)
        if self._tables is None or len(self._turns.cosines) > self._n_positions:
            for table in self._tables or ():
                self._device.free(table)
            cosines, sines = (self._device.allocate(a.nbytes) for a in (self._turns.cosines, self._turns.sines))
            self._device.upload(cosines, self._turns.cosines)
            self._device.upload(sines, self._turns.sines)
            self._tables, self._n_positions = (cosines, sines), len(self._turns.cosines)
        return self._tables


class _Blob:
    """Arrays one after another."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, npt.NDArray[Any]]] = []
        self.n_bytes = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        """The place of the array."""
        at = self.reserve(array.nbytes)
        self._parts.append((at, array))
        return at

    def reserve(self, n_bytes: int) -> int:
        """The place of that many bytes."""
        at = self.n_bytes
        self.n_bytes += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        return at

    def write(self, out: npt.NDArray[np.uint8]) -> None:
        """Writes all arrays."""
        for at, array in self._parts:
            out[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def check_batch(batch: Batch, plan: Plan, state: Places, max_rows: int, hidden_width: int | None = None) -> None:
    """Raises ValueError if kernels would leave their memory: on a GPU that ends the whole program.

    `hidden_width` are the columns of the hidden states that the steps read, None if they read none.
    """
    n_rows, n_sequences = batch.n_rows, batch.n_sequences
    if len(batch.positions) != n_rows or n_sequences < 1 or len(batch.pages) != n_sequences:
        raise ValueError("the arrays of the batch do not fit together")
    if not 1 <= n_rows <= max_rows:
        raise ValueError(f"a batch of {n_rows} rows, where 1 to {max_rows} fit")
    if len(batch.output_rows) > max_rows:
        raise ValueError("more logits wanted than rows fit")
    offsets = batch.offsets
    if offsets[0] != 0 or offsets[-1] != n_rows or offsets.max() > n_rows:
        raise ValueError("sequence offsets do not cover the rows")
    if _outside(batch.output_rows, n_rows) is not None:
        raise ValueError("logits wanted of a row outside the batch")
    if (offsets[1:] <= offsets[:-1]).any():
        raise ValueError("a sequence without rows")
    inner = np.ones(n_rows, bool)
    inner[offsets[:-1]] = False
    steps = batch.positions.astype(np.int64)
    if (np.diff(steps, prepend=steps[0] - 1)[inner] != 1).any():
        raise ValueError("positions of a sequence are not consecutive")
    first, last = steps[offsets[:-1]], steps[offsets[1:] - 1]
    if first.min() < 0 or last.max() >= MAX_CONTEXT:
        bad = int(last[(first < 0) | (last >= MAX_CONTEXT)][0])
        raise ValueError(f"position {bad} is outside the context of {MAX_CONTEXT}")
    needed = last // PAGE_SIZE + 1
    if needed.max() > batch.pages.shape[1]:
        raise ValueError("a sequence has too few pages")
    used = np.arange(batch.pages.shape[1]) < needed[:, None]
    if (page := _outside(batch.pages[used], state.n_pages)) is not None:
        raise ValueError(f"page {page} is outside the cache")
    table = next(
        (step.weights[0] for step in plan.steps if step.op == "embed"), None
    )  # a later part of a plan has none
    if table is not None and (token := _outside(batch.tokens, table.shape[0])) is not None:
        raise ValueError(f"token {token} is outside the vocabulary of {table.shape[0]}")
    _check_windows(batch, plan, state, first, last)
    if plan.slots:
        batch.check_slots(state.n_slots)
    if batch.adapters is not None and len(batch.adapters) != n_sequences:
        raise ValueError("the scales of adapters do not fit the batch")
    if batch.hidden is not None and len(batch.hidden) != n_rows:
        raise ValueError("the hidden states do not fit the batch")
    if hidden_width is not None and (batch.hidden is None or batch.hidden.shape[1] != hidden_width):
        raise ValueError(f"the batch has no hidden states of {hidden_width} columns")


def _check_windows(
    batch: Batch, plan: Plan, state: Places, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> None:
    """Raises ValueError unless the pages that rows write or see through a window are there."""
    if batch.window_pages is None:
        if any(n < state.n_pages for n in state.window_pages):
            raise ValueError("the batch has no page table of a window")
        return
    if batch.window_pages.shape[1:] != batch.pages.shape or len(batch.window_pages) != len(plan.windows):
        raise ValueError("the page tables of windows do not fit the batch")
    for window, table, n_pages in zip(plan.windows, batch.window_pages, state.window_pages, strict=True):
        numbers = np.arange(table.shape[1])
        oldest = np.maximum(first - window + 1, 0) // PAGE_SIZE
        seen = (numbers >= oldest[:, None]) & (numbers <= (last // PAGE_SIZE)[:, None])
        if _outside(table[seen], n_pages) is not None:
            raise ValueError("a page of a window is outside the cache")


def _outside(numbers: npt.NDArray[np.int32], n: int) -> int | None:
    """One of the numbers that is not from 0 to n - 1."""
    # As unsigned numbers the negative ones are the largest.
    if numbers.size == 0 or int(np.ascontiguousarray(numbers).view(np.uint32).max()) < n:
        return None
    return int(numbers[(numbers < 0) | (numbers >= n)][0])
