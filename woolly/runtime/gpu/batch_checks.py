"""Checks that kernels access no memory out of bounds, which on a GPU would end the program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from woolly.plan import Plan
from woolly.runtime.batch import Batch
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.multimodal_checks import MultimodalChecks
from woolly.runtime.state import PAGE_SIZE

MAX_CONTEXT = 1 << 20
# Lists are faster up to this size: a NumPy call takes as long as a hundred list elements.
_SHORT = 64


class StateAddresses(Protocol):
    """Addresses and sizes of a state, as the batch needs them."""

    @property
    def n_pages(self) -> int:
        """Total number of pages."""

    @property
    def window_pages(self) -> Sequence[int]:
        """Number of pages for each sliding window of the plan."""

    @property
    def n_slots(self) -> int:
        """Total number of slots (recurrent states)."""

    def entries(self, tables: Sequence[Address]) -> npt.NDArray[Any]:
        """Return struct Entry of each state entry. `tables`: page tables of full attention, then of each window."""

    def slots(self) -> npt.NDArray[np.uint64]:
        """Return the address of the slots of each entry."""


def check_batch(
    batch: Batch,
    plan: Plan,
    state: StateAddresses,
    max_rows: int,
    hidden_width: int | None = None,
    needs: MultimodalChecks | None = None,
) -> None:
    """Raise ValueError if kernels would access memory out of bounds, which on a GPU crashes the program.

    `hidden_width`: columns of the hidden states that the steps read, or None. `needs`: multimodal checks of the fused
    plan, None if it has no multimodal input.
    """
    n_rows, n_sequences = batch.n_rows, batch.n_sequences
    if len(batch.positions) != n_rows or n_sequences < 1 or len(batch.pages) != n_sequences:
        raise ValueError("the arrays of the batch do not fit together")
    if not 1 <= n_rows <= max_rows:
        raise ValueError(f"a batch of {n_rows} rows, where 1 to {max_rows} fit")
    if len(batch.output_rows) > max_rows:
        raise ValueError("more logits wanted than rows fit")
    offsets = batch.offsets.tolist()
    if offsets[0] != 0 or offsets[-1] != n_rows or max(offsets) > n_rows:
        raise ValueError("sequence offsets do not cover the rows")
    if _outside(batch.output_rows, n_rows) is not None:
        raise ValueError("logits wanted of a row outside the batch")
    if n_sequences == n_rows and offsets == list(range(n_rows + 1)):  # most decode steps
        first = last = batch.positions.tolist()
    else:
        if any(after <= before for before, after in pairwise(offsets)):
            raise ValueError("a sequence without rows")
        first, last = batch.positions[batch.offsets[:-1]].tolist(), batch.positions[batch.offsets[1:] - 1].tolist()
        is_next = np.diff(batch.positions.astype(np.int64)) == 1  # int32 would overflow
        is_next[batch.offsets[1:-1] - 1] = True  # sequence boundaries
        if not is_next.all():
            raise ValueError("positions of a sequence are not consecutive")
    if min(first) < 0 or max(last) >= MAX_CONTEXT:
        bad = next(end for start, end in zip(first, last, strict=True) if start < 0 or end >= MAX_CONTEXT)
        raise ValueError(f"position {bad} is outside the context of {MAX_CONTEXT}")
    if max(last) // PAGE_SIZE >= batch.pages.shape[1]:
        raise ValueError("a sequence has too few pages")
    if n_sequences == 1:
        used = batch.pages[0, : last[0] // PAGE_SIZE + 1]
    else:
        used = batch.pages[np.arange(batch.pages.shape[1]) <= (np.array(last) // PAGE_SIZE)[:, None]]
    if (page := _outside(used, state.n_pages)) is not None:
        raise ValueError(f"page {page} is outside the cache")
    # A later stage of a split plan has no embedding table.
    table = next((step.weights[0] for step in plan.steps if step.op == "embed"), None)
    if table is not None and (token := _outside(batch.tokens, table.shape[0])) is not None:
        raise ValueError(f"token {token} is outside the vocabulary of {table.shape[0]}")
    _check_windows(batch, plan, state, first, last)
    if plan.slots:
        batch.check_slots(state.n_slots)
    if batch.adapters is not None and len(batch.adapters) != n_sequences:
        raise ValueError("the scales of adapters do not fit the batch")
    if batch.hidden is not None and len(batch.hidden) != n_rows:
        raise ValueError("the hidden states do not fit the batch")
    (needs or MultimodalChecks(plan, is_supported=False)).check(batch)
    if hidden_width is not None and (batch.hidden is None or batch.hidden.shape[1] != hidden_width):
        raise ValueError(f"the batch has no hidden states of {hidden_width} columns")


def is_apart(batch: Batch) -> bool:
    """True if each sequence has one row and no row reads a page that another row writes."""
    n = batch.n_rows
    if batch.n_sequences != n or n == 1:
        return n == 1
    gather_rows = np.arange(n), batch.positions // PAGE_SIZE
    for table in (batch.pages, *(() if batch.window_pages is None else batch.window_pages)):
        is_written = np.zeros(int(table.max()) + 2, bool)  # the last element is for index -1: no page
        is_written[table[gather_rows]] = True
        # The batch writes n distinct pages, and each occurs once in the table: no page is shared or written twice.
        if np.count_nonzero(is_written) != n or np.count_nonzero(is_written[table]) != n:
            return False
    return True


def _check_windows(
    batch: Batch, plan: Plan, state: StateAddresses, firsts: Sequence[int], lasts: Sequence[int]
) -> None:
    """Raise ValueError if a page that rows write or read within a sliding window is out of bounds."""
    if batch.window_pages is None:
        if any(n < state.n_pages for n in state.window_pages):
            raise ValueError("the batch has no page table of a window")
        return
    if batch.window_pages.shape[1:] != batch.pages.shape or len(batch.window_pages) != len(plan.windows):
        raise ValueError("the page tables of windows do not fit the batch")
    first, last = np.array(firsts), np.array(lasts)
    for window, table, n_pages in zip(plan.windows, batch.window_pages, state.window_pages, strict=True):
        numbers = np.arange(table.shape[1])
        oldest = np.maximum(first - window + 1, 0) // PAGE_SIZE
        seen = (numbers >= oldest[:, None]) & (numbers <= (last // PAGE_SIZE)[:, None])
        if _outside(table[seen], n_pages) is not None:
            raise ValueError("a page of a window is outside the cache")


def max_position(numbers: npt.NDArray[np.int32]) -> int:
    """Return the largest position."""
    return max(numbers.tolist()) if numbers.size <= _SHORT else int(numbers.max())


def _outside(numbers: npt.NDArray[np.int32], n: int) -> int | None:
    """Return a number outside [0, n), or None."""
    if numbers.size <= _SHORT:
        return next((number for number in numbers.tolist() if not 0 <= number < n), None)
    # As unsigned integers, negative numbers are the largest.
    if int(np.ascontiguousarray(numbers).view(np.uint32).max()) < n:
        return None
    return int(numbers[(numbers < 0) | (numbers >= n)][0])
