"""The TowerStage: one of the plans that a tower runs one after another, each over the results of the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.plan import Plan, Tracer

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StageBuilder:
    """What says a stage's plan, and how the names of its tensors begin: a tensor belongs to the first that fits."""

    build: Callable[[Tracer, Any], None]
    names: tuple[str, ...]
    patches: int = 1  # of an image that are one row of the stage


@dataclass(frozen=True, eq=False)
class TowerStage:
    """A plan, and the most rows of one of its runs. Rows that do not see each other are computed in several."""

    plan: Plan
    max_rows: int


def filter_rows(centers: Sequence[int] | npt.NDArray[Any], low: int, high: int) -> Int32:
    """[n, 3]: what a filter of three taps covers around each center; -1 outside of `low` to `high`, which is zeros."""
    taps = np.asarray(centers)[:, None] + np.array([-1, 0, 1])
    return np.where((taps < low) | (taps >= high), -1, taps).astype(np.int32)
