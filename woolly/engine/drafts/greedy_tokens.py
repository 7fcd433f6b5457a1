"""Greedy choice of draft tokens."""

from __future__ import annotations

import numpy as np

from woolly.runtime import Batch, DraftProgram, Program, State, as_ranks


def greedy_tokens(program: Program | DraftProgram, batch: Batch, state: State, first: int = 0) -> list[int]:
    """Run the steps from `first` on; return the most likely next token per row, ranked on the device if possible."""
    if (ranks := as_ranks(program)) is not None:
        ranked: list[int] = ranks.rank(batch, state, 1, first).ids[:, 0].tolist()
        return ranked
    likely: list[int] = np.argmax(program.run(batch, state, first), axis=1).tolist()
    return likely
