"""`woolly cp`: another name for a model."""

from __future__ import annotations

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.derived_names import create_derived
from woolly.cli.parse.options import complete_model
from woolly.cli.parse.parameter import Argument


@command(
    Argument("source", "MODEL", "The model.", required=True, complete=complete_model),
    Argument("name", "NAME", "The new name.", required=True),
)
def cp(source: str, name: str) -> None:
    """Give a model another name, with the settings of a derived model. No weights are copied."""
    base = create_derived(name, source, None, {})
    click.echo(f"{name} is another name for {base}")
