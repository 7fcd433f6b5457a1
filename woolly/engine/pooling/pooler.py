"""Pooler: the last step to run and the pooling of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.plan import Plan, Pooling

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pooler:
    """Last step to run, and the pooling type of its rows ("none" returns all rows)."""

    pooling: Pooling
    width: int
    kind: Literal["embeddings", "scores"] = "embeddings"
    last: int | None = None  # number of steps of the running plan to run; None: all
    finish: Callable[[Float32], Float32] | None = None  # remaining work per row, such as a fused norm
    plan: Plan | None = None  # plan that `last` refers to
    is_whole: bool = False  # bidirectional attention: a text must be computed in one batch

    def wanted(self, first: int, n: int, is_end: bool) -> Sequence[int]:
        """Return the needed rows among n rows from position `first`.

        `is_end` is true if the text ends with these rows.
        """
        if self.pooling in ("mean", "none"):
            return range(n)
        if self.pooling == "cls":
            return (0,) if first == 0 else ()
        return (n - 1,) if is_end else ()

    def finished(self, rows: Float32) -> Float32:
        """Return the rows after the model's final norm."""
        return rows if self.finish is None else self.finish(rows)

    def pooled(self, sums: Float64, n_tokens: int) -> Float32:
        """Return the row of a text from the sum of its needed rows."""
        out: Float32 = (sums / n_tokens if self.pooling == "mean" else sums).astype(np.float32)
        return out


def add_rows(sums: Float64 | None, rows: Float32) -> Float64:
    """Add rows one by one, so that the sum is bit-identical if a text is processed in parts."""
    wide = rows.astype(np.float64)
    if sums is not None:
        wide = np.concatenate([sums[None], wide])
    # NumPy adds row by row along the first axis, but pairwise along the last axis.
    total: Float64 = np.add.reduce(wide, axis=0)
    return total
