"""Helpers of passes: find the readers of a value, replace steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.plan.plan import Attribute, Plan, Step


def users(plan: Plan) -> dict[int, list[int]]:
    """Return the indices of the steps that read each value. The plan's result does not count as read."""
    out: dict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(plan.steps):
        for value in step.inputs:
            out[value].append(index)
    return out


def changed(step: Step, **attributes: Attribute) -> Step:
    """Return the step with some attributes changed."""
    return replace(step, attributes=tuple({**dict(step.attributes), **attributes}.items()))


def rebuilt(plan: Plan, replaced: Mapping[int, tuple[Step, ...]]) -> Plan:
    """Return the plan with each step at these indices replaced by zero or more steps."""
    steps: list[Step] = []
    for index, step in enumerate(plan.steps):
        steps.extend(replaced.get(index, (step,)))
    return replace(plan, steps=tuple(steps))
