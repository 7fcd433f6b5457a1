"""Fuses the scale and the residual add into the linear or moe step before them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.plan.passes.rewrite import changed, rebuilt, users

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step


def fuse_residual(plan: Plan) -> Plan:
    """Replace `linears` with one output or `moe`, then scale, then add with one step that has an epilogue."""
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}
    for index, step in enumerate(plan.steps):
        if step.op not in ("linears", "moe") or step.text("epilogue") != "none" or len(step.outputs) != 1:
            continue
        fused = step

        def reader(fused: Step = step) -> tuple[int, Step | None]:
            at = readers[fused.output]
            return (at[0], plan.steps[at[0]]) if len(at) == 1 else (-1, None)

        at, after = reader(fused)
        if after is not None and after.op == "scale":
            fused = replace(changed(fused, scale=after.number("factor")), outputs=after.outputs)
            replaced[at] = ()
            at, after = reader(fused)
        # If both inputs of an add are such steps, it is fused into the first; the second computes its residual.
        if after is not None and after.op == "add" and after.inputs[0] != after.inputs[1] and at not in replaced:
            (residual,) = (value for value in after.inputs if value != fused.output)
            fused = replace(
                changed(fused, epilogue="residual"), inputs=(*fused.inputs, residual), outputs=after.outputs
            )
            # The fused step takes the place of the add, not of the linear, because the residual may be computed between
            # the two.
            replaced[index] = ()
            replaced[at] = (fused,)
        else:
            replaced[index] = (fused,)
    return rebuilt(plan, replaced)
