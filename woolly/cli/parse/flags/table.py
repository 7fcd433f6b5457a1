"""Table of the flags of other programs."""

from __future__ import annotations

from collections.abc import Mapping

import click

from woolly.cli.parse.flags.foreign_flag import ForeignFlag
from woolly.cli.parse.flags.ollama import OLLAMA
from woolly.cli.parse.flags.placement import PLACEMENT
from woolly.cli.parse.flags.prompts import PROMPTS
from woolly.cli.parse.flags.server import SERVER
from woolly.cli.parse.flags.speculation import SPECULATION
from woolly.cli.parse.flags.tools import TOOLS
from woolly.cli.parse.flags.vllm import VLLM

# The first row of a name that applies to a command counts.
FOREIGN_FLAGS = (*TOOLS, *PLACEMENT, *SPECULATION, *SERVER, *PROMPTS, *VLLM, *OLLAMA)

_BY_NAME: dict[str, list[ForeignFlag]] = {}
for _row in FOREIGN_FLAGS:
    for _name in (*_row.names.split(), *_row.off_names.split()):
        _BY_NAME.setdefault(_name, []).append(_row)


def find_flag(command: str, name: str, options: Mapping[str, click.Option]) -> ForeignFlag | None:
    """Return the row of a flag for a command with these options, or None if there is none."""
    return next((row for row in _BY_NAME.get(name, ()) if row.applies_to(command, options)), None)
