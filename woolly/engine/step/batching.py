"""The Work: what one request computes in a step, and how several make one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from woolly.engine.request import Request
from woolly.runtime import Batch
from woolly.sampling.sampler import Sampler

__all__ = ["Slots", "Work", "assemble", "page_table", "samplers_of"]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Slots:
    """The slots of recurrent state that a step reads and writes."""

    read: list[int]  # of each request; -1: zeros
    written: list[int]
    keeps: list[tuple[int, int]]  # (row, slot): the slot gets the state after the row

    def put_into(self, batch: Batch) -> Batch:
        """The batch with these slots."""
        return replace(
            batch,
            slots_in=np.array(self.read, np.int32),
            slots_out=np.array(self.written, np.int32),
            keeps=np.array(self.keeps, np.int32).reshape(-1, 2),
        )


class Work:
    """Rows of one request: tokens of its context, then drafts that may follow them.

    Tokens whose recurrent state was lost to rejected drafts come first; they are computed again.
    """

    __slots__ = ("drafts", "first", "is_complete", "n_again", "n_outputs", "n_tokens", "request")

    def __init__(self, request: Request, n_tokens: int, drafts: Sequence[int] = ()) -> None:
        self.request = request
        self.n_tokens = n_tokens  # of the context, from n_computed on
        self.drafts: Sequence[int] = ()
        self.n_again = request.n_replay
        self.first = request.n_computed - self.n_again  # the position of the first row
        # Whether the next token can be chosen after this step.
        self.is_complete = n_tokens == len(request.context) - request.n_computed
        # Rows at the end whose logits are needed.
        self.n_outputs = n_tokens if request.n_unscored else 1 if self.is_complete else 0
        if drafts:
            self.add(drafts)

    def add(self, drafts: Sequence[int]) -> None:
        """Adds drafts to work that has none."""
        self.drafts = drafts
        self.n_outputs += len(drafts) if self.n_outputs else 0

    @property
    def n_rows(self) -> int:
        """Rows of the batch."""
        return self.n_again + self.n_tokens + len(self.drafts)


def samplers_of(work: Sequence[Work]) -> list[Sampler | None]:
    """For each row of output, the sampler that chooses from it whatever comes before; None for the others."""
    samplers: list[Sampler | None] = []
    for item in work:
        if item.n_outputs == 1 and item.is_complete:
            samplers.append(item.request.sampler)
        elif item.n_outputs:
            samplers += [None] * item.n_outputs
            if item.is_complete:
                samplers[-1 - len(item.drafts)] = item.request.sampler
    return samplers


def assemble(work: Sequence[Work], slots: Slots | None, windows: Callable[[Int32], Int32 | None]) -> Batch:
    """One batch of all work; `windows` makes the page tables of windows from that of all tokens.

    Joins lists and converts them once: most steps have one row per request.
    """
    tokens: list[int] = []
    positions: list[int] = []
    offsets = [0]
    outputs: list[int] = []
    pages: list[Int32] = []
    end = 0
    for item in work:
        request, first, n_outputs = item.request, item.first, item.n_outputs
        if item.n_tokens == 1 == n_outputs and not item.n_again:
            tokens.append(request.context[first])
            positions.append(first)
            outputs.append(end)
            end += 1
        else:
            begin = end
            tokens += request.context[first : first + item.n_again + item.n_tokens]
            tokens += item.drafts
            end = len(tokens)
            positions += range(first, first + end - begin)
            outputs += range(end - n_outputs, end)
        offsets.append(end)
        pages.append(request.page_row)
    table = page_table(pages)
    batch = Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        offsets=np.array(offsets, np.int32),
        pages=table,
        output_rows=np.array(outputs, np.int32),
        window_pages=windows(table),
        adapters=np.array([item.request.adapters for item in work], np.float32) if work[0].request.adapters else None,
    )
    return batch if slots is None else slots.put_into(batch)


def page_table(pages: Sequence[Int32]) -> Int32:
    """The page table of a batch: one row of each request."""
    if len(pages) == 1:
        only: Int32 = pages[0].reshape(1, -1).copy()
        return only
    table = np.full((len(pages), max(map(len, pages))), -1, np.int32)
    for i, row in enumerate(pages):
        table[i, : len(row)] = row
    return table
