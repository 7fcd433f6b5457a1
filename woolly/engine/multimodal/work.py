"""How much a step of a tower computes, counted before it runs: slices of it are cut by this, never by a clock."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.plan import Load, Plan

# Multiply-adds of a slice for each thread: 60 to 80 ms at the 55 Gflop/s that a thread of 2.5 GHz with AVX-512 gives.
SLICE = 2_000_000_000
# Those of a slice on a GPU, which computes whole steps: 10 to 70 ms.
GPU_SLICE = 1_000_000_000_000

# A column of a step that only moves or bends numbers counts as much as these multiply-adds.
_MOVED = 8


def row_work(plan: Plan, n_rows: int) -> Sequence[float]:
    """Returns the multiply-adds of one row of each step's result, if the image has n rows; windows count as whole."""
    load = Load(1, 0, n_rows)
    moved = (_MOVED * sum(plan.values[value].width for value in step.outputs) for step in plan.steps)
    return [more + step.cost(plan, load).products / n_rows for step, more in zip(plan.steps, moved, strict=True)]
