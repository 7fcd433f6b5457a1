"""`woolly plan`: the steps of a model, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from woolly.cli.options import ModelName, ModelOption, one_model
from woolly.cli.progress import tell
from woolly.cli.screen import results
from woolly.store import resolve

__all__ = ["plan"]


def plan(
    model: ModelName = None,
    named: ModelOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every layer, also those that are alike.")] = False,
    fused: Annotated[bool, typer.Option("--fused", help="Show the steps as the cpu backend runs them.")] = False,
) -> None:
    """Print the table of steps that a model is computed by."""
    from woolly.gguf import open_gguf
    from woolly.models import trace
    from woolly.plan import show
    from woolly.plan.passes import fuse

    with open_gguf(resolve(one_model("plan", model, named))) as file:
        traced = trace(file)
        table = show(fuse(traced) if fused else traced, fold=not everything)
    width = results().width
    lines = table.splitlines()
    typer.echo("\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in lines))
    if any(len(line) > width for line in lines):
        tell(f"(cut at {width} columns; `woolly plan ... | less -S` has all of it)", style="dim")
