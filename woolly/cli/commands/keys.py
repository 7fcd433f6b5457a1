"""`woolly keys`: named API keys of a server, with their limits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.screen import print_table, stdout_console

_ACTIONS = ("list", "add", "remove")


@command(
    Argument("action", "ACTION", "list, add or remove.", shown="list"),
    Argument("name", "NAME", "For add and remove: the name of a key."),
    Option("--keys-file", "File of API keys.", Path, shown="WOOLLY_KEYS_FILE, or keys.toml next to the models folder"),
    Option("--admin", "The key may load and unload models, and sees everyone's usage.", bool, default=False),
    Option("--requests-per-minute", "Maximum requests per minute.", int, metavar="N"),
    Option("--requests-per-day", "Maximum requests per day.", int, metavar="N"),
    Option("--tokens-per-minute", "Maximum tokens per minute, prompts and answers.", int, metavar="N"),
    Option("--tokens-per-day", "Maximum tokens per day.", int, metavar="N"),
    Option("--models", "Models that the key may use, with * and ?, separated by commas.", shown="all"),
    AS_JSON,
)
def keys(
    action: str | None,
    name: str | None,
    keys_file: Path | None,
    admin: bool,
    requests_per_minute: int | None,
    requests_per_day: int | None,
    tokens_per_minute: int | None,
    tokens_per_day: int | None,
    models: str | None,
    as_json: bool,
) -> None:
    """Add, list or remove named API keys: woolly keys add anna --tokens-per-day 2000000.

    `add` prints the key once; the file only contains its hash. `woolly serve --keys-file FILE` requires these keys, and
    reads changes of the file within seconds.
    """
    from woolly.serving.accounts.keys_file import default_file

    action = action or "list"
    if action not in _ACTIONS:
        raise UsageError(f"unknown action {action!r}; expected one of {', '.join(_ACTIONS)}")
    given = os.environ.get("WOOLLY_KEYS_FILE")
    file = keys_file or (Path(given) if given else default_file())
    if action == "list":
        if name is not None:
            raise UsageError(f"list takes no name, but {name} is given")
        _list(file, as_json)
        return
    if name is None:
        raise UsageError(f"{action} needs the name of a key: woolly keys {action} anna")
    if action == "remove":
        from woolly.serving.accounts.keys_file import remove_key

        remove_key(file, name)
        click.echo(json.dumps({"removed": name}) if as_json else f"{name} removed from {file}")
        return
    limits = {
        "requests_per_minute": requests_per_minute,
        "requests_per_day": requests_per_day,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
    }
    allowed = tuple(one.strip() for one in (models or "").split(",") if one.strip())
    _add(file, name, admin, {limit: n for limit, n in limits.items() if n is not None}, allowed, as_json)


def _add(file: Path, name: str, is_admin: bool, limits: dict[str, int], models: tuple[str, ...], as_json: bool) -> None:
    from woolly.serving.accounts.keys_file import add_key

    key = add_key(file, name, is_admin=is_admin, limits=limits, models=models)
    if as_json:
        click.echo(json.dumps({"name": name, "key": key, "file": str(file)}))
        return
    click.echo(key)
    print_status(
        f"this is the only time that the key of {name} is shown; `woolly serve --keys-file {file}` asks for it"
    )


def _list(file: Path, as_json: bool) -> None:
    from woolly.serving.accounts.account import KeyLimits
    from woolly.serving.accounts.keys_file import read_keys

    accounts = [key.account for key in read_keys(file)] if file.exists() else []
    rows: list[dict[str, Any]] = [
        {"name": one.name, "admin": one.is_admin, **vars(one.limits), "models": list(one.models)} for one in accounts
    ]
    if as_json:
        click.echo(json.dumps({"file": str(file), "keys": rows}, indent=2))
        return
    if not rows:
        print_status(f"there are no keys in {file}; `woolly keys add NAME` makes one")
        return
    from rich.table import Table

    titles = (name.replace("_per_", "/") for name in KeyLimits.names())
    table = Table("name", "admin", *titles, "models", box=None, pad_edge=False)
    for row in rows:
        limits = ("" if row[name] is None else str(row[name]) for name in KeyLimits.names())
        table.add_row(row["name"], "yes" if row["admin"] else "", *limits, ", ".join(row["models"]) or "all")
    print_table(stdout_console(), table)
