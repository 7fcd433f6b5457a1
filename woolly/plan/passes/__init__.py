"""Passes: rewrites of a plan that make it faster without changing its results."""

from collections.abc import Callable, Sequence

from woolly.plan.passes.append import append
from woolly.plan.passes.center_keys import center_keys, keeps_biases
from woolly.plan.passes.fuse_attention import fuse_attention
from woolly.plan.passes.fuse_glu import fuse_glu
from woolly.plan.passes.fuse_norm import fuse_norm
from woolly.plan.passes.fuse_residual import fuse_residual
from woolly.plan.passes.inject_embeddings import inject_embeddings
from woolly.plan.passes.merge_linears import merge_linears
from woolly.plan.passes.partition import (
    balance_layers,
    layer_split_points,
    merge_parts,
    slice_layers,
    slice_steps,
    split_points,
)
from woolly.plan.passes.plan_memory import ArenaLayout, barriers, plan_memory
from woolly.plan.passes.prune_rows import prune_rows
from woolly.plan.passes.tap_hidden import tap_hidden
from woolly.plan.plan import Plan

__all__ = [
    "FUSIONS",
    "ArenaLayout",
    "Pass",
    "append",
    "balance_layers",
    "barriers",
    "center_keys",
    "fuse",
    "fuse_attention",
    "fuse_glu",
    "fuse_norm",
    "fuse_residual",
    "fusions_for",
    "inject_embeddings",
    "keeps_biases",
    "layer_split_points",
    "merge_linears",
    "merge_parts",
    "plan_memory",
    "prune_rows",
    "slice_layers",
    "slice_steps",
    "split_points",
    "tap_hidden",
]

Pass = Callable[[Plan], Plan]

# The order matters: later passes match the output of earlier ones.
FUSIONS: tuple[Pass, ...] = (prune_rows, fuse_attention, merge_linears, fuse_norm, fuse_glu, fuse_residual)


def fusions_for(k_type: str) -> tuple[Pass, ...]:
    """Return the fusion passes for a key cache type; 4-bit keys are stored without their bias."""
    at = FUSIONS.index(fuse_attention) + 1
    return (*FUSIONS[:at], center_keys, *FUSIONS[at:]) if k_type == "q4" else FUSIONS


def fuse(plan: Plan, passes: Sequence[Pass] = FUSIONS) -> Plan:
    """Apply all fusion passes, or the given ones, in order."""
    for one_pass in passes:
        plan = one_pass(plan)
    return plan
