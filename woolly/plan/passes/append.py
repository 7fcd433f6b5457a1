"""Two plans as one list of steps, for a backend that hands over all steps at once."""

from __future__ import annotations

from dataclasses import replace

from woolly.plan.plan import Plan, Step, Value


def append(plan: Plan, more: Plan) -> Plan:
    """The steps of both plans; values of the second are counted on from those of the first.

    Entries of the state keep their numbers: each part runs over a state of its own.
    """
    n = len(plan.values)

    def moved(step: Step) -> Step:
        return replace(step, inputs=tuple(v + n for v in step.inputs), outputs=tuple(v + n for v in step.outputs))

    values = tuple(Value(value.id + n, value.width, value.rows) for value in more.values)
    return replace(plan, steps=plan.steps + tuple(map(moved, more.steps)), values=plan.values + values)
