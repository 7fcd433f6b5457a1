"""The screen: results on standard output, as wide as a terminal and unwrapped in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The width of a pipe: rows are not wrapped, so that grep and cut find them whole.
_ENDLESS = 10_000


def stdout_console() -> Console:
    """The console of standard output. Without markup: names and templates are full of brackets."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _ENDLESS
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table; in a pipe without spaces at the ends of lines."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
