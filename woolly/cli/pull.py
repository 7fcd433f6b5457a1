"""`woolly pull`: bring a model here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from woolly import store
from woolly.cli.options import ModelOption, one_model
from woolly.cli.progress import bytes_bar, chatter

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["fetched", "pull", "pull_with_progress"]


def pull(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name of the catalogue, hf:org/repo or hf:org/repo:Q4_K_M for a file of the Hugging Face hub, or the"
            " https:// address of a GGUF file.",
            show_default=store.DEFAULT_MODEL,
        ),
    ] = None,
    named: ModelOption = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", help="What the file of an address must hash to.", show_default=False)
    ] = None,
) -> None:
    """Bring a model here and print where it lies, for instance: woolly pull hf:org/repo:Q4_K_M.

    A model that is here already is not fetched again, and a download that was broken off goes on where it ended.
    HF_TOKEN opens gated and private repositories, HF_ENDPOINT names another hub. `woolly show` tells beforehand
    whether a model will fit.
    """
    print(pull_with_progress(one_model("pull", model, named, store.DEFAULT_MODEL), chatter(), sha256))


def pull_with_progress(name: str, console: Console, sha256: str | None = None) -> Path:
    """Fetch a model with a progress bar: bytes, rate, time left; no bar where the console is no terminal."""
    with bytes_bar(f"fetching {name.rsplit('/', 1)[-1]}", console) as report:
        return store.pull(name, sha256=sha256, progress=report)


def fetched(name: str) -> str | Path:
    """A model to be opened: one of the catalogue is fetched first; others must be here already."""
    return pull_with_progress(name, chatter()) if store.is_catalogued(name) else name
