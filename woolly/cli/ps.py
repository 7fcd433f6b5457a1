"""`woolly ps`: what a running server holds."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from woolly.cli.options import AsJson
from woolly.cli.screen import print_table, results
from woolly.cli.sizes import size
from woolly.errors import RequestError
from woolly.store import CATALOGUE

__all__ = ["ps"]

_TIMEOUT = 10


def ps(
    url: Annotated[str, typer.Option("--url", "-u", help="Where the server is.")] = "http://127.0.0.1:8080",
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", help="Key of a server that asks for one.", show_default="WOOLLY_API_KEY where it is set"
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also models that could be loaded.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a running server which models are loaded, and how it fares."""
    url = url.rstrip("/")
    key = api_key or os.environ.get("WOOLLY_API_KEY", "").split(",")[0] or None
    models = _ask(f"{url}/api/v1/models", key)
    if not isinstance(models, list):
        raise RequestError(f"{url} answers, but not as Woolly's server does: give the address of a `woolly serve`")
    shown = [model for model in models if everything or model.get("loaded")]
    stats = _ask(f"{url}/api/v1/performance/stats", key)
    if as_json:
        typer.echo(json.dumps({"url": url, "models": shown, "stats": stats}, indent=2))
        return
    _print(url, shown, stats)


def _ask(url: str, key: str | None) -> Any:
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"--url is {url!r}; expected an address such as http://127.0.0.1:8080")
    where = url.split("/api/")[0]
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "woolly"})
        if key:
            request.add_unredirected_header("Authorization", f"Bearer {key}")  # a redirect may lead to another host
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise RequestError(f"the server at {where} asks for a key: give it with --api-key") from None
        raise RequestError(f"the server at {where} answers {error.code} {error.reason} to {url}") from None
    except (OSError, ValueError) as error:
        reason: Any = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise RequestError(
            f"no server answers at {where} ({reason}): start one with `woolly serve`, or give --url"
        ) from None


def _names(model: dict[str, Any]) -> tuple[str, list[str]]:
    """The name that `woolly list` gives a model, and the others that the server takes; the file's name once."""
    known = [str(name) for name in (model["name"], *model.get("aliases", ()))]
    name = next((name for name in known if name in CATALOGUE), known[0])
    return name, [other for other in known if other != name and other not in {f"{stem}.gguf" for stem in known}]


def _print(url: str, models: list[dict[str, Any]], stats: dict[str, Any]) -> None:
    from rich.table import Table

    console = results()
    if models:
        table = Table(box=None, pad_edge=False)
        table.add_column("model", overflow="fold")
        table.add_column("state", no_wrap=True)
        for name in ("size", "context", "parameters"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("also called", overflow="fold")
        for model in models:
            state = "loaded" if model.get("loaded") else "not loaded"
            n = f"{model['parameters'] / 1e6:.0f}M"
            name, others = _names(model)
            table.add_row(name, state, size(model["size_bytes"]), str(model["context_length"]), n, ", ".join(others))
        print_table(console, table)
    else:
        typer.echo(f"no model is loaded at {url}; the first request loads one", err=True)
    rate = stats.get("average_tokens_per_second")
    facts = [f"memory {stats['memory_usage_mb']:.0f} MB"] if stats.get("memory_usage_mb") else []
    facts += [f"{rate:.1f} tokens/s"] if rate else []
    facts += [f"prefix cache hits {stats['cache_hit_rate']:.0%}"] if stats.get("cache_hit_rate") else []
    if facts:
        console.print(", ".join(facts))
