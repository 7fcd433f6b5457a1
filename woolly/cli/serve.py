"""`woolly serve` and `woolly-server`: the server. Their flags are the table of `serving/settings.py`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from woolly.serving.configuration import kind_of, read_settings
from woolly.serving.foreign import FOREIGN, ForeignFlag
from woolly.serving.settings import Settings, groups

__all__ = ["main", "serve"]


def serve(**flags: Any) -> None:
    """Answer over HTTP: OpenAI's API, Ole's and llama-server's, for instance: woolly serve -m smollm2."""
    # Imported late, so that the other commands start fast.
    from woolly.serving.lifecycle import run

    given = {name: value for name, value in flags.items() if value not in (None, [])}
    for foreign in FOREIGN:
        given.pop(foreign.name, None)  # what came this far asks for nothing else than what is done
    code = run(read_settings(given))
    raise typer.Exit(code)


def main() -> None:
    """Entry point of `woolly-server`: `woolly serve` under the earlier Woolly's name."""
    from woolly.cli.app import main as woolly

    sys.argv.insert(1, "serve")
    woolly()


def _parameter(name: str, annotation: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation | None, option]
    )


def _setting(setting: Field[Any], panel: str) -> inspect.Parameter:
    """A flag in its panel of --help."""
    kind: Any = kind_of(setting.name)
    flags, shown = setting.metadata["flags"], setting.metadata["shown"]
    if shown is None and setting.default not in (None, ()):
        yes, _, no = flags[0].partition("/")
        shown = (yes if setting.default else no).lstrip("-") if kind is bool else str(setting.default)
    option = typer.Option(*flags, help=setting.metadata["help"], show_default=shown or False, rich_help_panel=panel)
    return _parameter(setting.name, list[str] if kind is tuple else kind, option)


def _foreign(flag: ForeignFlag) -> inspect.Parameter:
    """A flag of llama-server's that --help does not show."""
    spelled = flag.flags.split() if flag.takes_value else _switch(flag.flags)
    return _parameter(
        flag.name, str if flag.takes_value else bool, typer.Option(*spelled, hidden=True, callback=_check(flag))
    )


def _check(flag: ForeignFlag) -> Callable[[Any], Any]:
    """Called before typer complains of what follows, such as the name of a flag that was taken for the value."""

    def check(value: Any) -> Any:
        if value is not None:
            flag.check({True: "on", False: "off"}.get(value, value))
        return value

    return check


def _switch(flags: str) -> list[str]:
    """`-a --b/-c --d` as typer has it: `-a/-c`, `--b/--d`."""
    yes, _, no = flags.partition("/")
    pairs = zip_longest(yes.split(), no.split())
    return [f"{on or yes.split()[-1]}/{off}" if off else str(on) for on, off in pairs]


def _signature() -> inspect.Signature:
    """The flags, made from the settings: what stands in one table cannot differ in two."""
    file = typer.Option("--config", help="File of settings.", show_default="woolly.toml where it is, or WOOLLY_CONFIG")
    panels = groups()
    return inspect.Signature(
        [
            _parameter("config", Path, file),
            *(_setting(setting, panels[setting.name]) for setting in fields(Settings)),
            *map(_foreign, FOREIGN),
        ]
    )


serve.__signature__ = _signature()  # type: ignore[attr-defined]
