"""Fuses glu into the linears that compute gate and up, whose rows are then never stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.plan.passes.rewrite import changed, rebuilt, users

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step


def fuse_glu(plan: Plan) -> Plan:
    """Replace `linears` with two outputs and the following glu with one step that has a glu epilogue."""
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}
    for index, linears in enumerate(plan.steps):
        if linears.op != "linears" or linears.text("epilogue") != "none" or len(linears.outputs) != 2:
            continue
        gate, up = linears.outputs
        if len(readers[gate]) != 1 or readers[gate] != readers[up]:
            continue
        at = readers[gate][0]
        glu = plan.steps[at]
        if glu.op != "glu" or glu.inputs != (gate, up):
            continue
        gated = changed(linears, epilogue=f"glu:{glu.text('act')}", limit=glu.number("limit"))
        replaced[index] = (replace(gated, outputs=glu.outputs),)
        replaced[at] = ()
    return rebuilt(plan, replaced)
