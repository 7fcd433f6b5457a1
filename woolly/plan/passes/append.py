"""Concatenation of two plans, for backends that compile all steps together."""

from __future__ import annotations

from dataclasses import replace

from woolly.plan.plan import Plan, Step, Value


def append(plan: Plan, more: Plan) -> Plan:
    """Concatenate the steps of both plans. The value ids of the second plan continue after those of the first.

    State entries keep their numbers, because each part runs with a separate state.
    """
    n = len(plan.values)

    def moved(step: Step) -> Step:
        return replace(step, inputs=tuple(v + n for v in step.inputs), outputs=tuple(v + n for v in step.outputs))

    values = tuple(Value(value.id + n, value.width, value.rows) for value in more.values)
    return replace(plan, steps=plan.steps + tuple(map(moved, more.steps)), values=plan.values + values)
