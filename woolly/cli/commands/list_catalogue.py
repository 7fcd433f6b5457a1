"""Output of `woolly list --catalogue`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from woolly.cli.first_run.capacity import machine_capacity
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.machine.capacity import Capacity
from woolly.store import DEFAULT_MODEL, Tag, find_stored, read_catalogue

_COLUMNS = ("name", "size", "parameters", "runs here", "kind", "licence", "quantization", "architecture", "hub")
# Minimum terminal width of optional columns; the other columns are always shown.
_FROM = {"kind": 90, "licence": 112, "quantization": 190, "architecture": 190, "hub": 190}


def print_catalogue(as_json: bool) -> None:
    """Print one line per size of a family, or all details as JSON."""
    from rich.table import Table

    from woolly.models import architectures

    catalogue, runs, capacity = read_catalogue(), architectures(), machine_capacity()
    rows = list(_rows(runs, capacity))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    console = stdout_console()
    # Terminals of normal width show the essential columns. Wide terminals, pipes and --json show all.
    columns = [column for column in _COLUMNS if console.width >= _FROM.get(column, 0)]
    table = Table(box=None, pad_edge=False)
    shown = [[_shown(row, column) for column in columns] for row in rows]
    for i, column in enumerate(columns):
        widest = max(len(cells[i]) for cells in shown)
        right = column in ("size", "parameters")
        table.add_column(column, justify="right" if right else "left", no_wrap=True, min_width=widest)
    for cells in shown:
        table.add_row(*cells)
    print_table(console, table)
    print_status(
        f"catalogue of {catalogue.updated}; ~ is an estimate; parameters are all/active; the bare name of a family is"
        f" its first size, and {DEFAULT_MODEL} alone the default model",
        dim=True,
    )


def _shown(row: dict[str, Any], column: str) -> str:
    """Return a cell. For MoE models, the active parameters follow the total: 34.7B/3.0B."""
    if column == "parameters":
        active = "" if row["active"] == row["parameters"] else f"/{billions(row['active'])}"
        return billions(row["parameters"]) + active
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
            yield {
                "name": f"{name}:{tag}",
                "kind": family.purpose,
                "runs_here": fits_here(entry, architectures, capacity, is_here=is_here),
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
