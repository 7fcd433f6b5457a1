"""`woolly plan`: the steps of a model, one line each."""

from __future__ import annotations

import typer

from woolly.store import resolve

__all__ = ["plan"]


def plan(
    model: str = typer.Argument(..., help="A GGUF file or a model's name.", show_default=False),
) -> None:
    """Print the table of steps that a model is computed by."""
    from woolly.gguf import open_gguf
    from woolly.models import trace
    from woolly.plan import show

    with open_gguf(resolve(model)) as file:
        typer.echo(show(trace(file)))
