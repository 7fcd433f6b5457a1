"""The Work: what one sequence computes in a step, and how several make one batch."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from woolly.engine.sequence import Sequence
from woolly.runtime import Batch

__all__ = ["Work", "assemble"]


@dataclass
class Work:
    """Rows of one sequence: tokens of its context, then drafts that may follow them."""

    sequence: Sequence
    n_tokens: int  # of the context, from n_computed on
    drafts: Seq[int] = ()

    @property
    def n_rows(self) -> int:
        """Rows of the batch."""
        return self.n_tokens + len(self.drafts)

    @property
    def is_complete(self) -> bool:
        """Whether the sequence's next token can be chosen after this."""
        return self.n_tokens == self.sequence.n_missing

    @property
    def n_outputs(self) -> int:
        """Rows at the end whose logits are wanted."""
        if self.sequence.n_unscored:
            return self.n_rows
        return 1 + len(self.drafts) if self.is_complete else 0


def assemble(work: Seq[Work]) -> Batch:
    """One batch of all the work. Lists are joined first and made arrays once: most steps have a row per sequence."""
    tokens: list[int] = []
    positions: list[int] = []
    offsets = [0]
    outputs: list[int] = []
    for item in work:
        sequence = item.sequence
        first = sequence.n_computed
        tokens += sequence.context[first : first + item.n_tokens]
        tokens += item.drafts
        positions += range(first, first + item.n_rows)
        offsets.append(len(tokens))
        outputs += range(len(tokens) - item.n_outputs, len(tokens))
    table = np.full((len(work), max(len(item.sequence.pages) for item in work)), -1, np.int32)
    for row, item in zip(table, work, strict=True):
        row[: len(item.sequence.pages)] = item.sequence.page_row
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        offsets=np.array(offsets, np.int32),
        pages=table,
        output_rows=np.array(outputs, np.int32),
    )
