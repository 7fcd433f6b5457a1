"""Gate and up that only swiglu reads: their rows are computed together and never stored."""

from __future__ import annotations

from dataclasses import replace

from woolly.plan.passes.rewrite import changed, rebuilt, users
from woolly.plan.plan import Plan, Step

__all__ = ["fuse_swiglu"]


def fuse_swiglu(plan: Plan) -> Plan:
    """`linears` of two outputs, then swiglu of them -> the epilogue of the linears."""
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}
    for index, linears in enumerate(plan.steps):
        if linears.op != "linears" or linears.text("epilogue") != "none" or len(linears.outputs) != 2:
            continue
        gate, up = linears.outputs
        if len(readers[gate]) != 1 or readers[gate] != readers[up]:
            continue
        at = readers[gate][0]
        swiglu = plan.steps[at]
        if swiglu.op != "swiglu" or swiglu.inputs != (gate, up):
            continue
        replaced[index] = (replace(changed(linears, epilogue="swiglu"), outputs=swiglu.outputs),)
        replaced[at] = ()
    return rebuilt(plan, replaced)
