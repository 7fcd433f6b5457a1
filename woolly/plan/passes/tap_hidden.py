"""Inputs of some layers, collected for a draft head (EAGLE-3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from woolly.errors import ModelError
from woolly.plan.plan import Plan, Step, Value


def tap_hidden(plan: Plan, features: Plan, layers: Sequence[int]) -> Plan:
    """Return the plan with the steps of `features` after the inputs of these layers, which they read concatenated.

    `features` begins with the input rows of a batch (`hidden`). Its last value is `Plan.features`.
    """
    read = [_input(plan, layer) for layer in layers]
    (brought,) = (step.output for step in features.steps if step.op == "hidden")
    n_columns = sum(plan.values[value].width for value in read)
    if n_columns != features.values[brought].width or any(plan.values[value].rows != "batch" for value in read):
        raise ModelError(
            f"the head reads {features.values[brought].width} numbers of each row, but layers"
            f" {', '.join(map(str, layers))} of the {plan.architecture} model get {n_columns}"
        )
    values, steps = list(plan.values), list[Step]()
    both = read[0]
    for value in read[1:]:
        width = values[both].width + values[value].width
        values.append(Value(len(values), width, "batch"))
        attributes = (("heads", 1), ("shared", 0))
        steps.append(Step("concat", (both, value), (values[-1].id,), (), attributes, features.steps[0].source))
        both = values[-1].id
    n = len(values)
    moved = {value.id: n + value.id for value in features.values} | {brought: both}
    values += [Value(n + value.id, value.width, value.rows) for value in features.values]
    for step in features.steps:
        if step.op != "hidden":
            inputs, outputs = (tuple(moved[value] for value in side) for side in (step.inputs, step.outputs))
            steps.append(replace(step, inputs=inputs, outputs=outputs))
    at = 1 + max(i for i, step in enumerate(plan.steps) if set(step.outputs) & set(read))
    return replace(
        plan,
        steps=(*plan.steps[:at], *steps, *plan.steps[at:]),
        values=tuple(values),
        features=steps[-1].output,
    )


def _input(plan: Plan, layer: int) -> int:
    """Return the input value of a layer, or of the output head for the index after the last layer."""
    names = plan.layers
    last = max((i for i, name in enumerate(names) if name), default=-1)
    first = next((i for i, name in enumerate(names) if name == f"blk.{layer}"), None)
    if first is None and layer == plan.n_layers and last + 1 < len(plan.steps):
        first = last + 1
    if first is None or not plan.steps[first].inputs:
        raise ModelError(f"the head reads layer {layer}, but the {plan.architecture} model has {plan.n_layers}")
    return plan.steps[first].inputs[0]
