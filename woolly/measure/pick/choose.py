"""Choosing one type for each group so that the sum of losses is least under a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from woolly.quant import GGMLType

# Parts of the size that the table of the best sums has a column for.
_COLUMNS = 4000


@dataclass(frozen=True)
class TypeOption:
    """One type of a group."""

    type: GGMLType
    n_bytes: int
    loss: float


def choose_types(groups: Sequence[Sequence[TypeOption]], n_bytes: int) -> list[int] | None:
    """The index of an option for each group, of least loss in all and of at most `n_bytes`; None if nothing fits.

    Sizes are counted in 4000ths of what may vary, rounded up: the result fits, and misses the best by a 4000th at most.
    """
    least = [min(option.n_bytes for option in options) for options in groups]
    room = n_bytes - sum(least)
    if room < 0:
        return None
    unit = max(1, -(-room // _COLUMNS))
    n = room // unit + 1
    best = np.zeros(n)
    choices = np.zeros((len(groups), n), np.int64)
    for g, options in enumerate(groups):
        sums = np.full((len(options), n), np.inf)
        for i, option in enumerate(options):
            used = -(-(option.n_bytes - least[g]) // unit)
            if used < n:
                sums[i, used:] = best[: n - used] + option.loss
        choices[g] = sums.argmin(axis=0)
        best = sums.min(axis=0)
    picked, left = [], n - 1
    for g in reversed(range(len(groups))):
        index = int(choices[g, left])
        picked.append(index)
        left -= -(-(groups[g][index].n_bytes - least[g]) // unit)
    return picked[::-1]
