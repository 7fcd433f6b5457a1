"""Manual pages in roff, from the help texts of the commands; `scripts/generate --man FOLDER` writes them."""

from __future__ import annotations

from pathlib import Path

import click

from docs.tools.cli import commands_of, groups_of, names_of
from woolly import __version__
from woolly.cli.app import app
from woolly.cli.parse.command import Command
from woolly.cli.parse.parameter import shown_default, shown_help


def write(folder: Path) -> list[Path]:
    """Write woolly.1 and a page per command; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = commands_of(app)
    pages = {"woolly": _overview(commands)} | {f"woolly-{command.name}": _page(command) for command in commands}
    for name, text in pages.items():
        (folder / f"{name}.1").write_text(text)
    return [folder / f"{name}.1" for name in pages]


def escape(text: str) -> str:
    """Return a text as roff prints it literally: backslashes, hyphens, and dots and quotes at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.splitlines())


def _overview(commands: list[Command]) -> str:
    parts = [_head("woolly", "run, serve and convert GGUF models"), ".SH SYNOPSIS\n.B woolly\nCOMMAND [OPTIONS]"]
    parts.append(".SH COMMANDS")
    for command in commands:
        parts.append(f".TP\n.BR woolly\\-{escape(str(command.name))} (1)\n{escape(_first(command))}")
    return "\n".join(parts) + "\n"


def _page(command: Command) -> str:
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    parts = [
        _head(f"woolly-{command.name}", _first(command)),
        f".SH SYNOPSIS\n.B woolly {escape(str(command.name))}\n{escape(usage)}",
        ".SH DESCRIPTION",
        "\n.PP\n".join(escape(" ".join(one.split())) for one in str(command.help).split("\n\n")),
    ]
    for title, parameters in groups_of(command).items():
        parts.append(f".SH {escape(title.upper())}")
        for parameter in parameters:
            names = ", ".join(name.strip("`") for name in names_of(parameter).split("` `"))
            default = shown_default(parameter)
            text = shown_help(parameter) + (f" Default: {default}." if default else "")
            parts.append(f".TP\n.B {escape(names)}\n{escape(text)}")
    parts.append(".SH SEE ALSO\n.BR woolly (1)")
    return "\n".join(parts) + "\n"


def _head(name: str, summary: str) -> str:
    title = f'.TH {escape(name.upper())} 1 "" "Woolly {__version__}" "User Commands"'
    return f"{title}\n.SH NAME\n{escape(name)} \\- {escape(summary)}"


def _first(command: Command) -> str:
    return " ".join(str(command.help).partition("\n\n")[0].split())
