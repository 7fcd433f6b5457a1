"""The printed table of a plan: one line per step, stable enough to be compared as text."""

from __future__ import annotations

from woolly.plan.plan import Plan, Step

__all__ = ["COLUMNS", "rows", "show"]

COLUMNS = ("step", "op", "inputs", "output", "weight", "type", "attributes", "source")


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """The cells of the table, one tuple per step."""
    return [_row(plan, index, step) for index, step in enumerate(plan.steps)]


def show(plan: Plan) -> str:
    """The whole table as plain text with aligned columns."""
    table = [COLUMNS, *rows(plan)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def _row(plan: Plan, index: int, step: Step) -> tuple[str, ...]:
    attributes = " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in step.attributes
    )
    return (
        str(index),
        step.op,
        ",".join(f"v{i}" for i in step.inputs),
        " ".join(f"v{i} [{plan.values[i].rows}, {plan.values[i].width}]" for i in step.outputs),
        " ".join(weight.name for weight in step.weights),
        " ".join(weight.type.name for weight in step.weights),
        attributes,
        step.source,
    )
