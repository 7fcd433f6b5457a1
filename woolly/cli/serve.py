"""`woolly serve` and `woolly-server`: the server. Their flags are the table of `serving/settings.py`."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from woolly.serving.configuration import kind_of, read_settings
from woolly.serving.settings import Settings

__all__ = ["main", "serve"]


def serve(**flags: Any) -> None:
    """Answer over HTTP: OpenAI's API, Ole's and llama-server's, for instance: woolly serve -m smollm2."""
    # Imported late, so that the other commands start fast.
    from woolly.serving.lifecycle import run

    code = run(read_settings({name: value for name, value in flags.items() if value not in (None, [])}))
    raise typer.Exit(code)


def main() -> None:
    """Entry point of `woolly-server`: `woolly serve` under the earlier Woolly's name."""
    from woolly.cli.app import main as woolly

    sys.argv.insert(1, "serve")
    woolly()


def _parameter(name: str, annotation: Any, flags: tuple[str, ...], text: str, shown: str | None) -> inspect.Parameter:
    option = typer.Option(*flags, help=text, show_default=shown or False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation | None, option]
    )


def _signature() -> inspect.Signature:
    """The flags, made from the settings: what stands in one table cannot differ in two."""
    parameters = [
        _parameter("config", Path, ("--config",), "File of settings.", "woolly.toml where it is, or WOOLLY_CONFIG")
    ]
    for setting in fields(Settings):
        kind: Any = kind_of(setting.name)
        shown = setting.metadata["shown"]
        if shown is None and setting.default not in (None, ()):
            yes, _, no = setting.metadata["flags"][0].partition("/")
            shown = (yes if setting.default else no).lstrip("-") if kind is bool else str(setting.default)
        annotation = list[str] if kind is tuple else kind
        parameters.append(
            _parameter(setting.name, annotation, setting.metadata["flags"], setting.metadata["help"], shown)
        )
    return inspect.Signature(parameters)


serve.__signature__ = _signature()  # type: ignore[attr-defined]
