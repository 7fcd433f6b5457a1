"""Control vectors: a direction added to the residual stream after a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from woolly.errors import ModelError
from woolly.plan.plan import Plan, Step, Value, Weight


def add_control_vectors(plan: Plan, directions: Mapping[str, Weight]) -> Plan:
    """Return the plan with an `add_weight` after each layer ("blk.3") that has a direction.

    Raises ModelError for a direction that does not fit.
    """
    last = {layer: index for index, layer in enumerate(plan.layers)}
    if missing := [layer for layer in directions if layer not in last]:
        raise ModelError(f"a control vector has a direction for {missing[0]}, which does not exist in the model")
    values = list(plan.values)
    steps: list[Step] = []
    renamed: dict[int, int] = {}  # layer output -> value with the direction added
    ends = {last[layer]: weight for layer, weight in directions.items()}
    for index, step in enumerate(plan.steps):
        steps.append(replace(step, inputs=tuple(renamed.get(v, v) for v in step.inputs)))
        if (weight := ends.get(index)) is None:
            continue
        left = plan.values[step.output]
        if (left.width,) != weight.shape:
            raise ModelError(
                f"a control vector has {weight.shape[0]} numbers, but {plan.layers[index]} leaves {left.width}"
            )
        values.append(Value(len(values), left.width, left.rows))
        steps.append(Step("add_weight", (left.id,), (values[-1].id,), (weight,), (), step.source))
        renamed[left.id] = values[-1].id
    return replace(plan, steps=tuple(steps), values=tuple(values))
