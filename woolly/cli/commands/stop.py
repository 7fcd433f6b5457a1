"""`woolly stop`: unloads models of a running server."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import click

from woolly.cli.commands.ps import API_KEY, API_KEY_FILE, URL, ask, models_of, server_at
from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON
from woolly.cli.parse.parameter import Argument
from woolly.cli.parse.usage_errors import closest
from woolly.errors import RequestError

# Maximum seconds for running requests.
_PATIENCE = 600


@command(
    Argument("name", "NAME", "A model from `woolly ps`.", shown="all loaded models"),
    URL,
    API_KEY,
    API_KEY_FILE,
    AS_JSON,
)
def stop(name: str | None, url: str, api_key: str | None, api_key_file: Path | None, as_json: bool) -> None:
    """Unload a model, or all models, of a running server. Running requests finish first."""
    url, key = server_at(url, api_key, api_key_file)
    loaded = {str(model["name"]): model for model in models_of(url, key) if model.get("loaded")}
    if name is not None:
        named = [known for known, model in loaded.items() if name in (known, *model.get("aliases", ()))]
        if not named:
            hint = closest(name, loaded) or (f"loaded are {', '.join(loaded)}" if loaded else "no model is")
            raise RequestError(f"{name!r} is not loaded at {url}: {hint}")
        loaded = {known: loaded[known] for known in named}
    for known in loaded:
        ask(f"{url}/api/v1/models/{quote(known, safe='')}/unload", key, seconds=_PATIENCE, post=True)
        if not as_json:
            click.echo(f"{known} is unloaded")
    if as_json:
        click.echo(json.dumps({"url": url, "unloaded": list(loaded)}, indent=2))
    elif not loaded:
        click.echo(f"no model is loaded at {url}", err=True)
