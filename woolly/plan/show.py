"""The printed table of a plan: one line per step, stable enough to be compared as text."""

from __future__ import annotations

import re

from woolly.plan.plan import Plan, Step

__all__ = ["show"]

_COLUMNS = ("step", "op", "inputs", "output", "weight", "type", "source", "attributes")


def show(plan: Plan, *, fold: bool = False) -> str:
    """The table as plain text with aligned columns. `fold` shows one of each run of layers that are alike."""
    rows = [_row(plan, index, step) for index, step in enumerate(plan.steps)]
    table = [_COLUMNS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], *(_folded(rows, lines[1:]) if fold else lines[1:])])


def _row(plan: Plan, index: int, step: Step) -> tuple[str, ...]:
    # A window or softcap of 0 is none.
    attributes = " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in step.attributes
        if name not in ("window", "softcap") or value
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


def _folded(rows: list[tuple[str, ...]], lines: list[str]) -> list[str]:
    """Layers alike but for their number are counted instead of shown."""
    layers: list[tuple[str, list[int]]] = [("", [])]  # layer number ("" for none) and its rows
    for index, row in enumerate(rows):
        found = re.match(r"blk\.(\d+)\.", row[4])
        # A step without weights belongs to the layer before it, but for the one that leaves the last layer.
        inherits = not row[4] and row[1] != "output_rows"
        number = found[1] if found else layers[-1][0] if inherits else ""
        if number != layers[-1][0]:
            layers.append((number, []))
        layers[-1][1].append(index)
    out: list[str] = []
    before, alike = "", 0
    for number, members in layers:
        text = "\n".join(
            " ".join(re.sub(r"\bv\d+|blk\.\d+\.|layer=\d+", "", cell) for cell in rows[i][1:]) for i in members
        )
        if number and text == before:
            alike += 1
            continue
        if alike:
            out.append(f"      ({alike} more {'layers' if alike > 1 else 'layer'} like this one)")
        before, alike = text, 0
        out.extend(lines[i] for i in members)
    return out
