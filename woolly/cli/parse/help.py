"""What --help prints: sections of arguments and options, plain or in boxes."""

from __future__ import annotations

import inspect

import click

from woolly.cli.parse.parameter import shown_default, shown_help, shown_name

__all__ = ["boxed_help", "write_sections"]


def _sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Names and texts: arguments, then options without a section, then each section under its name."""
    found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        default = shown_default(parameter)
        text = shown_help(parameter)
        record = (shown_name(parameter), f"{text}  [default: {default}]" if default else text)
        is_argument = isinstance(parameter, click.Argument)
        found.setdefault("Arguments" if is_argument else getattr(parameter, "section", "Options"), []).append(record)
    return {name: records for name, records in found.items() if records}


def write_sections(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Plain text."""
    for name, records in _sections(command, context).items():
        with formatter.section(name):
            formatter.write_dl(records)


def boxed_help(command: click.Command, context: click.Context) -> str:
    """The whole help with a box around each section, for a command with many options."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    with console.capture() as captured:
        console.print(f"{context.get_usage()}\n\n{inspect.cleandoc(command.help or '')}\n")
        for name, records in _sections(command, context).items():
            table = Table.grid(padding=(0, 2))
            table.add_column(style="cyan", max_width=max(20, console.width * 2 // 5))
            table.add_column()
            for record in records:
                table.add_row(*record)
            console.print(Panel(table, title=name, title_align="left", border_style="dim", expand=True))
    return captured.get().rstrip("\n")
