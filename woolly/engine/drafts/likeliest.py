"""The likeliest token after each row: what drafts propose."""

from __future__ import annotations

import numpy as np

from woolly.runtime import Batch, DraftProgram, Program, Ranks, State

__all__ = ["likeliest"]


def likeliest(program: Program | DraftProgram, batch: Batch, state: State, first: int = 0) -> list[int]:
    """Runs steps from `first` on; a program that ranks logits keeps them to itself."""
    tokens = (
        program.rank(batch, state, 1, first).ids[:, 0]
        if isinstance(program, Ranks)
        else np.argmax(program.run(batch, state, first), axis=1)
    )
    return [int(token) for token in tokens]
