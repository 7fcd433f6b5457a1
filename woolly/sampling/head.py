"""The RowHead: the likeliest tokens of a row, from which most samplers choose as they would from the whole row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# Tokens of the longest head.
MAX_HEAD_TOKENS = 256


@dataclass(slots=True)
class RowHead:
    """Tokens and logits, the largest first, equal ones by id; and what is known of all others."""

    ids: npt.NDArray[np.int32]
    logits: Float32
    n_vocab: int
    total: float  # the sum of exp(logit - largest logit) over the whole row; NaN if a device did not make it
    is_sound: bool  # if not, the row holds NaN or plus infinity, and nothing else of this is true
    whole: Callable[[], Float32]  # the row itself


# What a sampler chooses from. A token if it has chosen already, with those of other rows (`usual.choose_together`).
Row = Float32 | RowHead | int


def kept(row: Row) -> Row:
    """A copy, for later: the memory of a row is that of the next step's rows, too."""
    if isinstance(row, int):
        return row
    if not isinstance(row, RowHead):
        copy: Float32 = row.copy()
        return copy
    whole = row.whole().copy()
    return RowHead(row.ids.copy(), row.logits.copy(), row.n_vocab, row.total, row.is_sound, lambda: whole)
