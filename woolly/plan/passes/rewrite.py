"""Helpers of passes: readers of a value, and replacement of steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.plan.plan import Attribute, Plan, Step


def users(plan: Plan) -> dict[int, list[int]]:
    """For each value the indices of the steps that read it; the plan's result counts as read by no step."""
    out: dict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(plan.steps):
        for value in step.inputs:
            out[value].append(index)
    return out


def changed(step: Step, **attributes: Attribute) -> Step:
    """The step with some attributes changed."""
    return replace(step, attributes=tuple({**dict(step.attributes), **attributes}.items()))


def rebuilt(plan: Plan, replaced: Mapping[int, tuple[Step, ...]]) -> Plan:
    """The plan with the steps at these indices replaced: by none, one or several."""
    steps: list[Step] = []
    for index, step in enumerate(plan.steps):
        steps.extend(replaced.get(index, (step,)))
    return replace(plan, steps=tuple(steps))
