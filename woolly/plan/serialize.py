"""Serialization of steps as plain data, for other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from woolly.plan.plan import Attribute, Plan, Step, Weight
from woolly.plan.rope_scaling import Rope
from woolly.quant import GGMLType


def steps_to_data(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Serialize steps as lists, strings and numbers."""
    return [
        {
            "op": step.op,
            "inputs": list(step.inputs),
            "outputs": list(step.outputs),
            "weights": [[weight.name, int(weight.type), list(weight.shape)] for weight in step.weights],
            "attributes": [[name, asdict(v) if isinstance(v, Rope) else v] for name, v in step.attributes],
            "source": step.source,
        }
        for step in steps
    ]


def steps_from_data(data: Sequence[dict[str, Any]]) -> tuple[Step, ...]:
    """Parse the output of `steps_to_data`."""
    return tuple(
        Step(
            one["op"],
            tuple(one["inputs"]),
            tuple(one["outputs"]),
            tuple(Weight(name, GGMLType(kind), tuple(shape)) for name, kind, shape in one["weights"]),
            tuple((name, _attribute(value)) for name, value in one["attributes"]),
            one["source"],
        )
        for one in data
    )


def plan_digest(plan: Plan) -> str:
    """Return a digest of a plan, which two processes can compare."""
    return hashlib.blake2b(repr((plan.steps, plan.values, plan.state)).encode(), digest_size=16).hexdigest()


def _attribute(value: Any) -> Attribute:
    return Rope(**{**value, "sections": tuple(value["sections"])}) if isinstance(value, dict) else value
