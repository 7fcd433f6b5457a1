"""Marked parts of the migration pages, from the table of other programs' flags."""

from __future__ import annotations

from collections.abc import Callable

from woolly.cli.parse.flags.foreign_flag import ForeignFlag
from woolly.cli.parse.flags.ollama import OLLAMA_VARIABLES
from woolly.cli.parse.flags.table import FOREIGN_FLAGS


def flags_of(program: str) -> str:
    """Return tables of the flags with other names, without effect, and that are rejected."""
    rows = [row for row in FOREIGN_FLAGS if row.program == program]
    tables: dict[str, Callable[[ForeignFlag], bool]] = {
        "| flag | in Woolly |": _is_mapped,
        "| accepted, without effect | reason |": lambda row: row.is_harmless and bool(row.reason),
        "| rejected | reason |": lambda row: not _is_mapped(row) and not row.is_harmless and bool(row.reason),
    }
    parts = []
    for head, is_shown in tables.items():
        lines = dict.fromkeys(_line(row) for row in rows if is_shown(row))
        if lines:
            parts.append("\n".join([head, "|---|---|", *lines]))
    return "\n\n".join(parts)


def ollama_variables() -> str:
    """Return the table of Ollama's environment variables."""
    rows = [f"| `{name}` | {f'`{ours}`' if ours else 'always on'} |" for name, ours in OLLAMA_VARIABLES.items()]
    return "\n".join(["| variable of Ollama | in Woolly |", "|---|---|", *rows]).replace("` and `", " and ")


def _is_mapped(row: ForeignFlag) -> bool:
    return bool(row.ours or row.sets or row.prints)


def _line(row: ForeignFlag) -> str:
    names = " ".join(f"`{name}`" for name in (*row.names.split(), *row.off_names.split()))
    commands = f" ({', '.join(row.commands.split())})" if row.commands and row.program == "llama.cpp" else ""
    return f"| {names}{commands} | {_meaning(row).replace('|', chr(92) + '|')} |"


def _meaning(row: ForeignFlag) -> str:
    if row.ours:
        if row.into is not None and not row.takes_value:
            return f"`{' '.join(row.into('on'))}`"
        return row.noted or f"`{row.ours}`" + (" (the values have other names)" if row.takes_value and row.into else "")
    if row.sets:
        return f"sets `{row.sets}`"
    if row.prints:
        return "prints it"
    allowed = ", ".join(value or '""' for value in row.done.split())
    return row.reason + (f"; {allowed} {'is' if len(row.done.split()) == 1 else 'are'} accepted" if row.done else "")
