"""Work estimate of encoder steps, in multiply-adds. Slices are cut by work, not by time."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.plan import Load, Plan

# Multiply-adds of a slice per thread: 60 to 80 ms at 55 Gflop/s, the rate of a 2.5 GHz thread with AVX-512.
SLICE = 2_000_000_000
# Multiply-adds of a slice on a GPU, which cannot split steps: 10 to 70 ms.
GPU_SLICE = 1_000_000_000_000

# Cost per column of an elementwise or copy step, in multiply-adds.
_MOVED = 8


def row_work(plan: Plan, n_rows: int) -> Sequence[float]:
    """Return the multiply-adds per output row of each step for an image of n rows, with full windows."""
    load = Load(1, 0, n_rows)
    moved = (_MOVED * sum(plan.values[value].width for value in step.outputs) for step in plan.steps)
    return [more + step.cost(plan, load).products / n_rows for step, more in zip(plan.steps, moved, strict=True)]
