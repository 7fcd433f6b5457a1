"""`woolly create`: a model name with its own system prompt and parameters, from Ollama's Modelfile."""

from __future__ import annotations

from pathlib import Path

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.derived_names import create_derived
from woolly.cli.parse.modelfile import read_modelfile
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.terminal.progress import print_status
from woolly.errors import StoreError


@command(
    Argument("name", "NAME", "The new name.", required=True),
    Option("--file -f", "The Modelfile.", metavar="FILE", default="Modelfile"),
)
def create(name: str, file: str) -> None:
    """Create a model name from Ollama's Modelfile: FROM, SYSTEM, PARAMETER and ADAPTER.

    The name is a table of presets.toml in the models folder, which can be edited there. No weights are copied.
    """
    path = Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the Modelfile {file} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    found = read_modelfile(text, path.parent)
    base = create_derived(name, found.base, found.system, found.settings)
    for one in found.ignored:
        print_status(f"woolly: {one} of the Modelfile has no effect")
    click.echo(f"created {name} from {base}")
