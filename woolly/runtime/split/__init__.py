"""A program whose steps are split between devices of one machine: GPUs, and the CPU for what they have no room for."""

from woolly.runtime.split.backend import SplitBackend
from woolly.runtime.split.placement import Placement
from woolly.runtime.split.program import Segment, SplitProgram, SplitState

__all__ = ["Placement", "Segment", "SplitBackend", "SplitProgram", "SplitState"]
