"""Results on standard output: as wide as the terminal, and a line for each row where it is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_table", "results"]

# A pipe has no width: nothing is wrapped there, so that grep and cut find whole rows.
_ENDLESS = 10_000


def results() -> Console:
    """Standard output. Plain text, not markup: names and templates are full of brackets."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _ENDLESS
    return console


def print_table(console: Console, table: Table) -> None:
    """A table, without spaces at the ends of lines where no one would see them."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
