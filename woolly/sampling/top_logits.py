"""Top logits of a row, enough for most samplers to choose the token that the complete row gives."""

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
    """Top tokens and logits in descending order, ties by id, and statistics of the complete row."""

    ids: npt.NDArray[np.int32]
    logits: Float32
    n_vocab: int
    total: float  # the sum of exp(logit - largest logit) over the whole row; NaN if a device did not make it
    is_sound: bool  # if not, the row holds NaN or plus infinity, and nothing else of this is true
    whole: Callable[[], Float32]  # the row itself


# What a sampler chooses from. A token if it has chosen already, with those of other rows (`fast_chain.choose_batch`).
Row = Float32 | TopLogits | int


def copy_row(row: Row) -> Row:
    """Return a copy for a later step: the next step overwrites the memory of a row."""
    if isinstance(row, int):
        return row
    if not isinstance(row, TopLogits):
        copy: Float32 = row.copy()
        return copy
    whole = row.whole().copy()
    return TopLogits(row.ids.copy(), row.logits.copy(), row.n_vocab, row.total, row.is_sound, lambda: whole)
