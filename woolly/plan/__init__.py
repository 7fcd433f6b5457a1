"""Plans: a model traced once into a linear list of steps."""

from woolly.plan.ops import OPS, Cost, Load, Op
from woolly.plan.plan import Injection, MaskedDiffusion, Plan, Pooling, Result, Step, Value, Weight
from woolly.plan.recorder import Handle
from woolly.plan.rope_scaling import Rope, rope_axes, rope_frequencies
from woolly.plan.show import show
from woolly.plan.state import Paged, Slot
from woolly.plan.tracer import Tracer

__all__ = [
    "OPS",
    "Cost",
    "Handle",
    "Injection",
    "Load",
    "MaskedDiffusion",
    "Op",
    "Paged",
    "Plan",
    "Pooling",
    "Result",
    "Rope",
    "Slot",
    "Step",
    "Tracer",
    "Value",
    "Weight",
    "rope_axes",
    "rope_frequencies",
    "show",
]
