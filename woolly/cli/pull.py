"""`woolly pull`: fetch a model of the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from woolly import store

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["pull", "pull_with_progress"]


def pull(
    name: Annotated[str, typer.Argument(help="Name of a model of the catalogue.")] = store.DEFAULT_MODEL,
) -> None:
    """Fetch a model by name and print where it lies.

    A model that is there already with the right checksum is not fetched again.
    """
    from rich.console import Console  # the other commands start faster without it

    print(pull_with_progress(name, Console(stderr=True)))


def pull_with_progress(name: str, console: Console) -> Path:
    """Fetch a model with a progress bar: bytes, rate, time left; no bar where the console is no terminal."""
    if not console.is_terminal:
        return store.pull(name)

    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(f"fetching {name}", total=None)

    def show(done: int, total: int) -> None:
        bar.start()  # only here: a model that is there already draws no bar
        bar.update(task, completed=done, total=total)

    try:
        return store.pull(name, progress=show)
    finally:
        bar.stop()
