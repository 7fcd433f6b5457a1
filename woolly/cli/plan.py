"""`woolly plan`: the steps of a model, one line each."""

from __future__ import annotations

import typer

from woolly.store import resolve

__all__ = ["plan"]


def plan(
    model: str = typer.Argument(..., help="A GGUF file or a model's name.", show_default=False),
    everything: bool = typer.Option(False, "--all", help="Show every layer, also those that are alike."),
    fused: bool = typer.Option(False, "--fused", help="Show the steps as the cpu backend runs them."),
) -> None:
    """Print the table of steps that a model is computed by."""
    from woolly.gguf import open_gguf
    from woolly.models import trace
    from woolly.plan import show
    from woolly.plan.passes import fuse

    with open_gguf(resolve(model)) as file:
        traced = trace(file)
        typer.echo(show(fuse(traced) if fused else traced, fold=not everything))
