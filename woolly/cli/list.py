"""`woolly list` and `woolly rm`: the models on this machine."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from typing import Annotated

import typer

from woolly.cli.options import AsJson
from woolly.cli.screen import print_table, results
from woolly.cli.sizes import size
from woolly.store import list_models, models_folder, remove_model

__all__ = ["list_command", "rm"]


def list_command(
    own: Annotated[bool, typer.Option("--own", help="Only those that Woolly keeps.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Also tell where each lies.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the models on this machine: Woolly's, and those of Ollama, LM Studio and Hugging Face's cache.

    Any of these names can be given to the other commands, and to a server. Other programs' files are used in place and
    never changed.
    """
    models = [model for model in list_models() if not own or model.owner == "woolly"]
    if as_json:
        facts = [
            {
                "name": m.name,
                "aliases": list(m.aliases),
                "path": str(m.path),
                "bytes": m.n_bytes,
                "owner": m.owner,
                "modified": int(m.modified),
            }
            for m in models
        ]
        typer.echo(json.dumps(facts, indent=2))
        return
    if not models:
        typer.echo(f"no models yet in {models_folder()}: `woolly pull` fetches the default one", err=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("of", no_wrap=True)
    table.add_column("modified", no_wrap=True)
    others = any(model.aliases for model in models)
    if others:
        table.add_column("also called", overflow="fold")
    if paths:
        table.add_column("path", overflow="fold")
    for model in models:
        day = datetime.fromtimestamp(model.modified).strftime("%Y-%m-%d")
        also = [", ".join(map(_typed, model.aliases))] if others else []
        where = [str(model.path)] if paths else []
        table.add_row(_typed(model.name), size(model.n_bytes), model.owner, day, *also, *where)
    print_table(results(), table)


def _typed(name: str) -> str:
    """A name as a shell takes it: one with spaces in quotes."""
    return shlex.quote(name)


def rm(
    names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names of `woolly list`.", show_default=False)],
) -> None:
    """Remove models that were pulled. Files of yours and of other programs are left alone."""
    for name in names:
        removed = remove_model(name)
        typer.echo(f"removed {removed.name} ({size(removed.n_bytes)})")
