"""Choice of a type per group with the smallest total loss within a size (knapsack problem)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from woolly.quant import GGMLType

# Size steps of the dynamic programming table.
_COLUMNS = 4000


@dataclass(frozen=True)
class TypeOption:
    """Type of a group."""

    type: GGMLType
    n_bytes: int
    loss: float


def choose_types(groups: Sequence[Sequence[TypeOption]], n_bytes: int) -> list[int] | None:
    """Return the option index per group with the least total loss within `n_bytes`, or None if nothing fits.

    Sizes are rounded up to 1/4000 of the variable part, so the result fits and is within 1/4000 of the optimum.
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
    allocation, left = [], n - 1
    for g in reversed(range(len(groups))):
        index = int(choices[g, left])
        allocation.append(index)
        left -= -(-(groups[g][index].n_bytes - least[g]) // unit)
    return allocation[::-1]
