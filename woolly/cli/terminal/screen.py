"""Results on standard output, wrapped on a terminal and not wrapped in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Width of a pipe. Rows are not wrapped, so that grep and cut work.
_ENDLESS = 10_000


def stdout_console() -> Console:
    """Return the console of standard output. No markup: names and templates contain brackets."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _ENDLESS
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table, in a pipe without trailing spaces."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
