"""The catalogue as `woolly list --catalogue` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from woolly.cli.start.room import room_here
from woolly.cli.terminal.screen import print_table, results
from woolly.machine.fit import Room
from woolly.store import DEFAULT_MODEL, Tag, find_stored, read_catalogue

__all__ = ["billions", "print_catalogue", "runs_here"]

_COLUMNS = ("name", "size", "parameters", "runs here", "kind", "licence", "quantization", "architecture", "hub")
_FURTHER = ("quantization", "architecture", "hub")
_WIDE = 190  # characters


def print_catalogue(as_json: bool) -> None:
    """Prints one line per size of a family, or all that is known of them as JSON."""
    from rich.table import Table

    from woolly.models import architectures

    catalogue, runs, room = read_catalogue(), architectures(), room_here()
    rows = list(_rows(runs, room))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    console = results()
    # A terminal of usual width shows what a choice needs; a wide one, a pipe and --json show all.
    columns = [column for column in _COLUMNS if console.width >= _WIDE or column not in _FURTHER]
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in ("size", "parameters") else "left", no_wrap=True)
    for row in rows:
        active = "" if row["active"] == row["parameters"] else f", {billions(row['active'])} active"
        shown = {**row, "size": row["shown_size"], "parameters": billions(row["parameters"]) + active}
        table.add_row(*(shown[column.replace(" ", "_")] for column in columns))
    print_table(console, table)
    told = f"catalogue of {catalogue.updated}; ~ is an estimate; the bare name of a family is its first size"
    click.echo(f"{told}; {DEFAULT_MODEL} alone is the default model", err=True)


def runs_here(tag: Tag, architectures: tuple[str, ...], room: Room, *, is_here: bool = False) -> str:
    """Returns yes, tight, too large, or not yet with the architecture that Woolly lacks."""
    if tag.architecture not in architectures:
        return f"not yet ({tag.architecture})"
    return room.fit(tag.n_bytes, is_here=is_here)


def _rows(architectures: tuple[str, ...], room: Room) -> Iterator[dict[str, Any]]:
    for name, family in read_catalogue().families.items():
        for tag, entry in family.tags.items():
            is_here = entry.n_bytes > room.disk and find_stored(f"{name}:{tag}") is not None
            yield {
                "name": f"{name}:{tag}",
                "kind": family.purpose,
                "runs_here": runs_here(entry, architectures, room, is_here=is_here),
                "size": entry.n_bytes,
                "shown_size": entry.gigabytes,
                "estimated": entry.is_estimated,
                "parameters": entry.n_parameters,
                "active": entry.n_active,
                "quantization": entry.quant,
                "architecture": entry.architecture,
                "licence": entry.licence,
                "hub": f"hf:{entry.repo}:{entry.quant}",
            }


def billions(n: int) -> str:
    """Returns a number of weights as model names have it: 135M, 1.7B."""
    if n >= 1e12:
        return f"{n / 1e12:.1f}T"
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M" if n >= 1e6 else f"{n:,}"
