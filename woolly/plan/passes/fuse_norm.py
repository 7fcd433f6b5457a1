"""A norm that only one linears or moe step reads moves into it: the step norms its input before quantizing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.plan.passes.rewrite import changed, rebuilt, users

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step


def fuse_norm(plan: Plan) -> Plan:
    """rms_norm over complete rows, read by one `linears` or `moe` step -> that step's prologue."""
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}
    for index, norm in enumerate(plan.steps):
        if norm.op != "rms_norm" or [w.shape for w in norm.weights] != [(plan.values[norm.output].width,)]:
            continue
        if len(readers[norm.output]) != 1:
            continue
        at = readers[norm.output][0]
        reader = plan.steps[at]
        # The step does not norm a separate router input.
        if reader.op not in ("linears", "moe") or reader.by_role("norm") or reader.inputs[0] != norm.output:
            continue
        fused = changed(reader, roles=f"norm {reader.text('roles')}", eps=norm.number("eps"))
        replaced[index] = ()
        replaced[at] = (
            replace(fused, inputs=norm.inputs + reader.inputs[1:], weights=(*norm.weights, *reader.weights)),
        )
    return rebuilt(plan, replaced)
