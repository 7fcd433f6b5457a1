"""Output of --help: groups of commands, sections of arguments and options, plain or in boxes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import click

from woolly.cli.parse.parameter import shown_default, shown_help, shown_name

_COMMON, _OTHERS = "Common options", "Options"


def sections_of(command: click.Command, context: click.Context) -> dict[str, list[click.Parameter]]:
    """Return parameters by --help title: arguments, common options, options without title, the rest."""
    common: Sequence[str] = getattr(command, "common", ())
    titles: Mapping[str, str] = getattr(command, "sections", {})
    found: dict[str, list[click.Parameter]] = {"Arguments": [], _COMMON: [], _OTHERS: []}
    for parameter in command.get_params(context):
        title = getattr(parameter, "section", "") or titles.get(str(parameter.name)) or _OTHERS
        if isinstance(parameter, click.Argument):
            title = "Arguments"
        elif parameter.name in common or (common and "--help" in parameter.opts):
            title = _COMMON
        found.setdefault(title, []).append(parameter)
    found[_COMMON].sort(key=lambda one: [*common, one.name].index(str(one.name)))  # --help is not listed and comes last
    return {title: parameters for title, parameters in found.items() if parameters}


def _sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return the names and help texts of the parameters by title."""
    return {title: [*map(_record, parameters)] for title, parameters in sections_of(command, context).items()}


def _record(parameter: click.Parameter) -> tuple[str, str]:
    text, default = shown_help(parameter), shown_default(parameter)
    return shown_name(parameter), f"{text}  [default: {default}]" if default else text


def write_commands(briefs: Mapping[str, str], titles: Mapping[str, str], formatter: click.HelpFormatter) -> None:
    """Write the lines of commands in groups. `titles` has the first command of each group."""
    groups: dict[str, list[tuple[str, str]]] = {}
    width, title = max(map(len, briefs)), "Commands"
    for name, brief in briefs.items():
        title = titles.get(name, title)
        groups.setdefault(title, []).append((f"{name:{width}}", brief))
    for title, records in groups.items():
        with formatter.section(title):
            formatter.write_dl(records)


def write_sections(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the sections of the help as plain text."""
    for name, records in _sections(command, context).items():
        with formatter.section(name):
            formatter.write_dl(records)


def boxed_help(command: click.Command, context: click.Context) -> str:
    """Return the complete help with a box around each section, for commands with many options."""
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
