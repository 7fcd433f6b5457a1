"""Memory requirements of a plan, computed by running its emitters without allocating."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from woolly.plan.passes import append, fuse
from woolly.plan.passes.plan_memory import plan_memory
from woolly.runtime.gpu.device import Address, Device
from woolly.runtime.gpu.state import check_heads
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan

ALIGNMENT = 256  # alignment of values and allocations, in bytes
# Bytes reserved for later allocations: weight staging, rope tables, graphs.
RESERVE = 512 << 20
# Default maximum rows of a batch: 2,048 rows amortize reading the weights.
USUAL_ROWS = 2048


@dataclass(frozen=True)
class Needs:
    """Device memory requirements in bytes."""

    weights: Mapping[str, int]  # packed bytes of each weight on the device, by key
    ranges: tuple[frozenset[str], ...]  # weight keys of each pipeline range (`part`); the last includes the draft
    values: int  # activations and scratch memory


class _Counter:
    """Device proxy that counts allocations."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.n_bytes = 0

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes to the device."""
        return getattr(self._device, name)

    def allocate(self, n_bytes: int) -> Address:
        """Count an allocation and return a placeholder address."""
        self.n_bytes += -(-max(n_bytes, 1) // ALIGNMENT) * ALIGNMENT
        return Address(ALIGNMENT)


def measure(device: Device, plan: Plan, tensors: Mapping[str, Tensor], kv_type: str, max_rows: int) -> Needs:
    """Compute the memory for a plan and its draft. Raises UnsupportedError if the device cannot run it."""
    from woolly.runtime.gpu.emitter import Emitter  # as in graph_runner.py

    check_heads(plan)
    passes = device.kernels.fusions(kv_type)
    running = fuse(plan, passes)
    draft = None if plan.draft is None else fuse(plan.draft, passes)
    whole = running if draft is None else append(running, draft)
    layout = plan_memory(whole, max_rows, ALIGNMENT, device.kernels.joined(whole, kv_type))
    views, counter = WeightViews(tensors), _Counter(device)
    emitter = Emitter(
        whole,
        cast(Device, counter),
        max_rows,
        kv_type,
        views,
        layout,
        Address(0),
        Address(0),
        RopeTables(whole, views),
        draft,
    )
    emitter.emit()
    weights = {name: -(-max(w.n_bytes, 1) // ALIGNMENT) * ALIGNMENT for name, w in emitter.weights.items()}
    # Every range except the first begins with a `hidden` step.
    starts = [0, *(i for i, step in enumerate(running.steps) if i and step.op == "hidden"), len(emitter.uses)]
    return Needs(
        weights,
        tuple(frozenset(name for names in emitter.uses[a:b] for name in names) for a, b in pairwise(starts)),
        layout.n_bytes + counter.n_bytes - sum(weights.values()),
    )
