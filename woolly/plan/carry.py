"""Steps as plain data, for another process that has to know which step makes which value."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from woolly.plan.plan import Attribute, Plan, Step, Weight
from woolly.plan.rope import Rope
from woolly.quant import GGMLType


def steps_to_data(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps as lists, texts and numbers."""
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
    """The steps that `steps_to_data` was given."""
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
    """A short name, equal for equal plans: two processes compare it."""
    return hashlib.blake2b(repr((plan.steps, plan.values, plan.state)).encode(), digest_size=16).hexdigest()


def _attribute(value: Any) -> Attribute:
    return Rope(**{**value, "sections": tuple(value["sections"])}) if isinstance(value, dict) else value
