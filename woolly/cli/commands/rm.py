"""`woolly rm`: removes pulled models."""

from __future__ import annotations

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import complete_model
from woolly.cli.parse.parameter import Argument
from woolly.cli.terminal.human_readable import format_size
from woolly.store import models_folder, remove_derived, remove_model


@command(Argument("names", "MODEL...", "Names from `woolly list`.", list, required=True, complete=complete_model))
def rm(names: tuple[str, ...]) -> None:
    """Remove pulled models, and names of `woolly create` and `cp`.

    Your own files and files of other programs are not removed.
    """
    for name in names:
        if remove_derived(models_folder(), name.removesuffix(":latest")):
            click.echo(f"removed the name {name}")
            continue
        removed = remove_model(name)
        if removed.link_to is not None:
            click.echo(f"removed the link {removed.name}; the file is unchanged: {removed.link_to}")
        else:
            click.echo(f"removed {removed.name} ({format_size(removed.n_bytes)})")
