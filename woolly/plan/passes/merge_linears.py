"""Merges linears of the same input into one step, so that the input is prepared once, without barriers in between."""

from __future__ import annotations

from woolly.plan.passes.rewrite import rebuilt
from woolly.plan.plan import Attribute, Plan, Step, Weight


def merge_linears(plan: Plan) -> Plan:
    """Replace adjacent linears that read one value with one `linears` step that has several outputs."""
    replaced: dict[int, tuple[Step, ...]] = {}
    index = 0
    while index < len(plan.steps):
        run = [plan.steps[index]]
        while (
            run[0].op == "linear"
            and index + len(run) < len(plan.steps)
            and (other := plan.steps[index + len(run)]).op == "linear"
            and other.inputs == run[0].inputs
        ):
            run.append(other)
        if run[0].op == "linear":
            replaced |= {index + i: () for i in range(len(run))}
            replaced[index] = (_merged(run),)
        index += len(run)
    return rebuilt(plan, replaced)


def _merged(run: list[Step]) -> Step:
    weights: list[Weight] = []
    roles: list[str] = []
    for step in run:
        weights += step.weights
        roles += ["weight", "bias"][: len(step.weights)]
    attributes: dict[str, Attribute] = {"roles": " ".join(roles), "eps": 0.0, "scale": 1.0}
    attributes |= {"epilogue": "none", "limit": 0.0}
    outputs = tuple(step.output for step in run)
    return Step("linears", run[0].inputs, outputs, tuple(weights), tuple(attributes.items()), run[0].source)
