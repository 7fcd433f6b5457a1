"""The Work: what one request computes in a step, and how several make one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from woolly.engine.request import Request
from woolly.runtime import Batch

__all__ = ["Slots", "Work", "assemble"]

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


@dataclass
class Work:
    """Rows of one request: tokens of its context, then drafts that may follow them.

    Tokens whose recurrent state was lost to rejected drafts come first; they are computed again.
    """

    request: Request
    n_tokens: int  # of the context, from n_computed on
    drafts: Sequence[int] = ()

    @property
    def first(self) -> int:
        """The position of the first row."""
        return self.request.n_computed - self.request.n_replay

    @property
    def n_rows(self) -> int:
        """Rows of the batch."""
        return self.request.n_replay + self.n_tokens + len(self.drafts)

    @property
    def is_complete(self) -> bool:
        """Whether the next token can be chosen after this step."""
        return self.n_tokens == self.request.n_missing

    @property
    def n_outputs(self) -> int:
        """Rows at the end whose logits are needed."""
        if self.request.n_unscored:
            return self.n_tokens + len(self.drafts)
        return 1 + len(self.drafts) if self.is_complete else 0


def assemble(work: Sequence[Work], slots: Slots | None, windows: Callable[[Int32], Int32 | None]) -> Batch:
    """One batch of all work; `windows` makes the page tables of windows from that of all tokens.

    Joins lists and converts them once: most steps have one row per request.
    """
    tokens: list[int] = []
    positions: list[int] = []
    offsets = [0]
    outputs: list[int] = []
    pages: list[Int32] = []
    for item in work:
        request, first, begin = item.request, item.first, len(tokens)
        tokens += request.context[first : request.n_computed + item.n_tokens]
        tokens += item.drafts
        end = len(tokens)
        positions += range(first, first + end - begin)
        offsets.append(end)
        outputs += range(end - item.n_outputs, end)
        pages.append(request.page_row)
    table = np.full((len(work), max(map(len, pages))), -1, np.int32)
    for i, row in enumerate(pages):
        table[i, : len(row)] = row
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
