"""Top logits of a row, which usually suffice to choose the same token as from the complete row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# Maximum number of top logits.
MAX_TOP_LOGITS = 256


@dataclass(slots=True)
class TopLogits:
    """Top tokens and logits in descending order (ties by id), and statistics of the complete row."""

    ids: npt.NDArray[np.int32]
    logits: Float32
    n_vocab: int
    total: float  # sum of exp(logit - largest logit) over the complete row; NaN if the device did not compute it
    is_sound: bool  # if False, the row has NaN or plus infinity, and the other fields are invalid
    whole: Callable[[], Float32]  # returns the complete row


# Input of a sampler. A token if a batch sampler has already chosen it (`fast_chain.choose_batch`).
Row = Float32 | TopLogits | int


def copy_row(row: Row) -> Row:
    """Return a copy for a later step, because the next step overwrites the row."""
    if isinstance(row, int):
        return row
    if not isinstance(row, TopLogits):
        copy: Float32 = row.copy()
        return copy
    whole = row.whole().copy()
    return TopLogits(row.ids.copy(), row.logits.copy(), row.n_vocab, row.total, row.is_sound, lambda: whole)
