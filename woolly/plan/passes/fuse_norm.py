"""Fuses a norm into the only `linears` or `moe` step that reads it, which norms its input before quantizing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.plan.passes.rewrite import changed, rebuilt, users

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step


def fuse_norm(plan: Plan) -> Plan:
    """Replace an rms_norm over complete rows that one `linears` or `moe` step reads with a prologue of that step."""
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}
    for index, norm in enumerate(plan.steps):
        if norm.op != "rms_norm" or [w.shape for w in norm.weights] != [(plan.values[norm.output].width,)]:
            continue
        if len(readers[norm.output]) != 1:
            continue
        at = readers[norm.output][0]
        reader = plan.steps[at]
        # A separate router input is not normed.
        if reader.op not in ("linears", "moe") or reader.by_role("norm") or reader.inputs[0] != norm.output:
            continue
        fused = changed(reader, roles=f"norm {reader.text('roles')}", eps=norm.number("eps"))
        replaced[index] = ()
        replaced[at] = (
            replace(fused, inputs=norm.inputs + reader.inputs[1:], weights=(*norm.weights, *reader.weights)),
        )
    return rebuilt(plan, replaced)
