"""Printed table of a plan: one line per step, stable enough to be compared as a string."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step

_COLUMNS = ("step", "op", "inputs", "output", "weight", "type", "source", "attributes")


def show(plan: Plan, *, fold: bool = False) -> str:
    """Return the table as plain text with aligned columns. `fold` shows only the first of equal layers."""
    rows = [_row(plan, index, step) for index, step in enumerate(plan.steps)]
    table = [_COLUMNS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], *(_folded(plan.layers, rows, lines[1:]) if fold else lines[1:])])


def _row(plan: Plan, index: int, step: Step) -> tuple[str, ...]:
    optional = {name.rstrip("?") for name in step.kind.attributes if name.endswith("?")}
    attributes = " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in step.attributes
        if name not in optional or value
    )
    return (
        str(index),
        step.op,
        ",".join(f"v{i}" for i in step.inputs),
        " ".join(f"v{i} [{plan.values[i].rows}, {plan.values[i].width}]" for i in step.outputs),
        " ".join(weight.name for weight in step.weights),
        " ".join(weight.type.name for weight in step.weights),
        step.source,
        attributes,
    )


def _folded(layers: tuple[str, ...], rows: list[tuple[str, ...]], lines: list[str]) -> list[str]:
    """Return the lines, with a count in place of layers that differ only in their number."""
    out: list[str] = []
    before, alike = "", 0
    for layer, run in groupby(range(len(rows)), key=lambda i: layers[i]):
        members = list(run)
        text = "\n".join(
            " ".join(re.sub(r"\bv\d+|blk\.\d+\.|entry=\d+", "", cell) for cell in rows[i][1:]) for i in members
        )
        if layer and text == before:
            alike += 1
            continue
        if alike:
            out.append(f"      ({alike} more {'layers' if alike > 1 else 'layer'} like this one)")
        before, alike = text, 0
        out.extend(lines[i] for i in members)
    return out
