"""`woolly plan`: prints the steps of a model, one per line."""

from __future__ import annotations

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import MODEL, NAMED, one_model
from woolly.cli.parse.parameter import Option
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.screen import stdout_console
from woolly.store import resolve


@command(
    MODEL,
    NAMED,
    Option("--all", "Show every layer, including identical ones.", bool, to="everything", default=False),
    Option("--fused", "Show the fused steps of the CPU backend.", bool, default=False),
)
def plan(model: str | None, named: str | None, everything: bool, fused: bool) -> None:
    """Print the steps that compute a model."""
    from woolly.gguf import open_gguf
    from woolly.models import trace
    from woolly.plan import show
    from woolly.plan.passes import fuse

    with open_gguf(resolve(one_model("plan", model, named))) as file:
        traced = trace(file)
        table = show(fuse(traced) if fused else traced, fold=not everything)
    width = stdout_console().width
    lines = table.splitlines()
    click.echo("\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in lines))
    if any(len(line) > width for line in lines):
        print_status(f"(cut at {width} columns; `woolly plan ... | less -S` has all of it)", dim=True)
