"""Programs split over the devices of one machine: GPUs, and the CPU for layers that do not fit."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.runtime.split.backend import SplitBackend
    from woolly.runtime.split.placement import Placement
    from woolly.runtime.split.placement_units import cpu_expert_bytes
    from woolly.runtime.split.program import Segment, SplitProgram
    from woolly.runtime.split.state import SplitState

__all__ = ["Placement", "Segment", "SplitBackend", "SplitProgram", "SplitState", "cpu_expert_bytes"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "backend": "SplitBackend",
        "placement": "Placement",
        "placement_units": "cpu_expert_bytes",
        "program": "Segment SplitProgram SplitState",
    },
)
