"""WHAT to compute: a model traced once into a straight list of steps."""

from woolly.plan.ops import OPS, Op
from woolly.plan.plan import CacheLayer, Plan, Step, Value, Weight
from woolly.plan.rope import Rope, rope_frequencies
from woolly.plan.show import show
from woolly.plan.tracer import Handle, Tracer

__all__ = [
    "OPS",
    "CacheLayer",
    "Handle",
    "Op",
    "Plan",
    "Rope",
    "Step",
    "Tracer",
    "Value",
    "Weight",
    "rope_frequencies",
    "show",
]
