"""What a tower takes of the memory, by the header of its file."""

from __future__ import annotations

from pathlib import Path

from woolly.errors import WoollyError
from woolly.gguf import open_gguf
from woolly.models.towers import TracedTower, trace_towers
from woolly.plan.passes import fuse
from woolly.plan.passes.place import place

_FLOAT = 4


def tower_bytes(projector: Path, min_rows: int = 0) -> int:
    """Returns what the towers of a projector's file take while they read their largest pieces; 0 if none can be used.

    Its weights, the values between its steps, keys and values of one layer, prepared inputs, and the piece itself.
    Programs have room for `min_rows`, even if no piece has as many.
    """
    try:
        with open_gguf(projector) as file:
            return sum(traced_bytes(traced, min_rows) for traced in trace_towers(file))
    except (WoollyError, OSError):
        return 0


def traced_bytes(traced: TracedTower, min_rows: int = 0) -> int:
    """Returns the same of a tower that is traced."""
    total = 0.0
    for stage in traced.stages:
        plan, n_rows = fuse(stage.plan), max(stage.max_rows, min_rows)
        weights = sum(weight.n_bytes for weight in plan.weights.values())
        kept = plan.bytes_per_token(_FLOAT) * n_rows
        # The widest input of a product, in floats; and the piece, as it came and in the order of the rows.
        widest = max((weight.shape[-1] for step in plan.steps for weight in step.matrices), default=0)
        brought = max(traced.params.patch, plan.values[plan.steps[0].output].width)
        total += weights + place(plan, n_rows).n_bytes + kept + _FLOAT * n_rows * (widest + 2 * brought)
    return round(total)
