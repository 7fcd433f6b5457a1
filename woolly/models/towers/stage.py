"""TowerStage: one of the plans that a tower runs in sequence."""

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
    """Builder of a stage, and the prefixes of its tensors; a tensor belongs to the first matching stage."""

    build: Callable[[Tracer, Any], None]
    names: tuple[str, ...]
    patches: int = 1  # of an image that are one row of the stage


@dataclass(frozen=True, eq=False)
class TowerStage:
    """Plan and its maximum rows per run. Rows without attention between them are computed in several runs."""

    plan: Plan
    max_rows: int


def filter_rows(centers: Sequence[int] | npt.NDArray[Any], low: int, high: int) -> Int32:
    """Return the three positions under a filter at each center, [n, 3]; -1, padding, outside `low` to `high`."""
    taps = np.asarray(centers)[:, None] + np.array([-1, 0, 1])
    return np.where((taps < low) | (taps >= high), -1, taps).astype(np.int32)
