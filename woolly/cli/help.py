"""What --help prints: plain text that fits the terminal, options in groups, and usage as a person would write it."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["argument_name", "write_parameters"]

# The kinds of values, as typer's versions spell them.
_KINDS = (
    (r"<(list\[)?str\]?>", "TEXT"),
    (r"<int>|\bINTEGER\b", "N"),
    (r"<float>|\bFLOAT\b", "X"),
    (r"<path>|\bPATH\b", "FILE"),
)


def argument_name(parameter: Any) -> str:
    """MODEL, or [MODEL] where it may be left out."""
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def write_parameters(command: Any, context: Any, formatter: Any) -> None:
    """Arguments, then the options that have no group, then each group under its name."""
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            groups["Arguments"].append((argument_name(parameter), _text(record[1])))
        else:
            name = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(name, []).append((_kind(record[0]), _text(record[1])))
    for name, records in groups.items():
        if records:
            with formatter.section(name):
                formatter.write_dl(records)


def _kind(names: str) -> str:
    for pattern, word in _KINDS:
        names = re.sub(pattern, word, names)
    return names


def _text(text: str) -> str:
    """A default that is described in words has brackets enough."""
    text = re.sub(r"\[default: \((.+?)\)\]", r"[default: \1]", text)
    return text.replace("  [required]", "")
