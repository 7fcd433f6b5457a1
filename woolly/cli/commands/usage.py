"""`woolly usage`: usage per API key of a server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON
from woolly.cli.parse.parameter import Option
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import RequestError


@command(
    Option("--by", "Groups: key, model or day, separated by commas.", default="key,model"),
    Option("--since", "First day, such as 2026-11-01 (UTC).", shown="all"),
    Option("--until", "Last day.", shown="today"),
    Option("--key", "Only this key.", shown="all"),
    Option("--usage-file", "Usage database.", Path, shown="WOOLLY_USAGE_FILE, or usage.db next to the models folder"),
    AS_JSON,
)
def usage(
    by: str, since: str | None, until: str | None, key: str | None, usage_file: Path | None, as_json: bool
) -> None:
    """Show the usage of models by API key: woolly usage --by key,day --since 2026-11-01.

    The server may be running; it writes the file every two seconds.
    """
    from woolly.serving.accounts.usage_ledger import read_usage
    from woolly.store import models_folder

    given = os.environ.get("WOOLLY_USAGE_FILE")
    file = usage_file or (Path(given) if given else models_folder().parent / "usage.db")
    if not file.is_file():
        raise RequestError(f"there is no usage in {file}; `woolly serve --keys-file FILE` writes it")
    groups = tuple(one.strip() for one in by.split(",") if one.strip())
    rows = read_usage(file, groups, key=key, since=since, until=until)
    if as_json:
        click.echo(json.dumps({"file": str(file), "by": groups, "usage": rows}, indent=2))
        return
    if not rows:
        print_status("nothing was used in this time")
        return
    from rich.table import Table

    table = Table(*(name.replace("_", " ") for name in rows[0]), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    print_table(stdout_console(), table)
