"""Output of `woolly list --catalogue`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from woolly.cli.first_run.capacity import machine_capacity
from woolly.cli.first_run.recommendation import ENOUGH, expected_rate, recommend
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.machine.capacity import Capacity
from woolly.store import Tag, find_stored, read_catalogue

_COLUMNS = (
    "name",
    "size",
    "parameters",
    "tokens/s",
    "runs here",
    "kind",
    "licence",
    "quantization",
    "architecture",
    "hub",
)
# Minimum terminal width of optional columns; the other columns are always shown.
_FROM = {"kind": 90, "licence": 112, "quantization": 190, "architecture": 190, "hub": 190}


def print_catalogue(as_json: bool, all_rows: bool) -> None:
    """Print the models that run well here, the recommended one first, or with `all_rows` every size of each family.

    JSON has all sizes and all details.
    """
    from rich.table import Table

    from woolly.models import architectures

    catalogue, runs, capacity = read_catalogue(), architectures(), machine_capacity()
    better = recommend()
    recommended = None if better is None else better.name
    rows = sorted(_rows(runs, capacity), key=lambda row: _rank(row, recommended))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    n_all = len(rows)
    rows = rows if all_rows else [row for row in rows if row["runs_well"]]
    console = stdout_console()
    # Terminals of normal width show the essential columns. Wide terminals, pipes and --json show all.
    columns = [column for column in _COLUMNS if console.width >= _FROM.get(column, 0)]
    table = Table(box=None, pad_edge=False)
    shown = [[_shown(row, column) for column in columns] for row in rows]
    for i, column in enumerate(columns):
        widest = max(len(cells[i]) for cells in shown)
        right = column in ("size", "parameters", "tokens/s")
        table.add_column(column, justify="right" if right else "left", no_wrap=True, min_width=widest)
    for cells in shown:
        table.add_row(*cells)
    print_table(console, table)
    rest = f"; {n_all - len(rows)} others are shown with --all" if n_all > len(rows) else ""
    first = "" if better is None else f"{better.name} is recommended for this machine; "
    print_status(
        f"{first}catalogue of {catalogue.updated}; ~ is an estimate; parameters are all/active; tokens/s are expected"
        f" for one answer here; the bare name of a family is its largest size that runs well here{rest}",
        dim=True,
    )


def _rank(row: dict[str, Any], recommended: str | None) -> tuple[bool, bool, bool]:
    """Rank the recommended model first, then models that run well, then models that fit."""
    return row["name"] != recommended, not row["runs_well"], row["runs_here"] != "yes"


def _shown(row: dict[str, Any], column: str) -> str:
    """Return a cell. For MoE models, the active parameters follow the total: 34.7B/3.0B."""
    if column == "parameters":
        active = "" if row["active"] == row["parameters"] else f"/{billions(row['active'])}"
        return billions(row["parameters"]) + active
    if column == "tokens/s":
        return "" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.0f}"
    return str(row["shown_size" if column == "size" else column.replace(" ", "_")])


def fits_here(tag: Tag, architectures: tuple[str, ...], capacity: Capacity, *, is_here: bool = False) -> str:
    """Return yes, tight, too large, or not yet with the unsupported architecture."""
    if tag.architecture not in architectures:
        return f"not yet ({tag.architecture})"
    return capacity.fit(tag.n_bytes, is_here=is_here)


def _rows(architectures: tuple[str, ...], capacity: Capacity) -> Iterator[dict[str, Any]]:
    for name, family in read_catalogue().families.items():
        for tag, entry in family.tags.items():
            is_here = entry.n_bytes > capacity.disk and find_stored(f"{name}:{tag}") is not None
            fit = fits_here(entry, architectures, capacity, is_here=is_here)
            rate = expected_rate(entry) if family.is_generative else None
            yield {
                "name": f"{name}:{tag}",
                "kind": family.purpose,
                "runs_here": fit,
                "tokens_per_second": rate if fit in ("yes", "tight") else None,
                "runs_well": fit == "yes" and (rate is None or rate >= ENOUGH),
                "size": entry.n_bytes,
                "shown_size": entry.gigabytes,
                "estimated": entry.is_estimated,
                "parameters": entry.n_parameters,
                "active": entry.n_active,
                "quantization": entry.quant,
                "architecture": entry.architecture,
                "licence": entry.licence,
                "hub": entry.hub_name(),
            }


def billions(n: int) -> str:
    """Return a number of weights in the format of model names: 135M, 1.7B."""
    if n >= 1e12:
        return f"{n / 1e12:.1f}T"
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M" if n >= 1e6 else f"{n:,}"
