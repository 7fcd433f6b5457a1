"""Memory estimate of a vision or audio encoder, from the header of its file."""

from __future__ import annotations

from pathlib import Path

from woolly.errors import WoollyError
from woolly.gguf import open_gguf
from woolly.multimodal.encoder import TracedTower, trace_towers
from woolly.plan.passes import fuse
from woolly.plan.passes.plan_memory import plan_memory

_FLOAT = 4


def tower_bytes(projector: Path, min_rows: int = 0) -> int:
    """Return the memory of a projector's encoders at their largest inputs; 0 if the projector is unusable.

    The estimate covers weights, activations, K and V of a layer, and inputs. Programs allocate at least `min_rows`
    rows.
    """
    try:
        with open_gguf(projector) as file:
            return sum(traced_bytes(traced, min_rows) for traced in trace_towers(file))
    except (WoollyError, OSError):
        return 0


def traced_bytes(traced: TracedTower, min_rows: int = 0) -> int:
    """Return the memory of a traced encoder."""
    total = 0.0
    for stage in traced.stages:
        plan, n_rows = fuse(stage.plan), max(stage.max_rows, min_rows)
        weights = sum(weight.n_bytes for weight in plan.weights.values())
        kept = plan.bytes_per_token(_FLOAT) * n_rows
        # Widest matmul input, in floats, and the encoder input in original and in row order.
        widest = max((weight.shape[-1] for step in plan.steps for weight in step.matrices), default=0)
        brought = max(traced.params.patch, plan.values[plan.steps[0].output].width)
        total += weights + plan_memory(plan, n_rows).n_bytes + kept + _FLOAT * n_rows * (widest + 2 * brought)
    return round(total)
