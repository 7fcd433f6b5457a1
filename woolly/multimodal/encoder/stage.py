"""TowerStage: a plan of an encoder, which runs several plans in sequence."""

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
    """Builder of a stage, with prefixes of tensor names. A tensor belongs to the first stage whose prefix matches."""

    build: Callable[[Tracer, Any], None]
    names: tuple[str, ...]
    patches: int = 1  # image patches per row of the stage


@dataclass(frozen=True, eq=False)
class TowerStage:
    """Plan, and the maximum rows per run. If rows do not attend to each other, several runs compute them."""

    plan: Plan
    max_rows: int


def filter_rows(centers: Sequence[int] | npt.NDArray[Any], low: int, high: int) -> Int32:
    """Return the three positions under a filter at each center, [n, 3]. Positions outside `low` to `high` are padding
    (-1).
    """
    taps = np.asarray(centers)[:, None] + np.array([-1, 0, 1])
    return np.where((taps < low) | (taps >= high), -1, taps).astype(np.int32)


def subsampling_filters(times: int, n_freqs: int, ahead: int = 0) -> Int32:
    """Return the input positions of each 3 x 3 filter of stride 2, [n, 9], time-major; -1 is padding.

    Filters are centered on every second frame, shifted by `ahead`.
    """
    by_time = filter_rows(range(ahead, times + ahead, 2), 0, times)[:, None, :, None]
    by_freq = filter_rows(range(0, n_freqs, 2), 0, n_freqs)[None, :, None, :]
    at = np.where((by_time < 0) | (by_freq < 0), -1, by_time * n_freqs + by_freq)
    return at.reshape(-1, 9).astype(np.int32)
