"""`woolly ps`: models of a running server."""

from __future__ import annotations

import json
import os
import re
import ssl
import stat
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_size
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import RequestError
from woolly.store import WHEEL_MODELS

_TIMEOUT = 10


URL = Option("--url -u", "Address of the server; http:// and /v1 are optional.", default="http://127.0.0.1:8080")
API_KEY = Option("--api-key", "API key, if the server requires one.", shown="WOOLLY_API_KEY if it is set")
API_KEY_FILE = Option(
    "--api-key-file", "File with the API key on its first line; hides the key from other users.", Path
)


@command(
    URL,
    API_KEY,
    API_KEY_FILE,
    Option("--all -a", "Include models that are not loaded.", bool, to="everything", default=False),
    AS_JSON,
)
def ps(url: str, api_key: str | None, api_key_file: Path | None, everything: bool, as_json: bool) -> None:
    """Show the loaded models of a running server, its memory and its speed. `woolly stop` unloads a model."""
    url, key = server_at(url, api_key, api_key_file)
    shown = [model for model in models_of(url, key) if everything or model.get("loaded")]
    stats = ask(f"{url}/api/v1/performance/stats", key)
    if as_json:
        click.echo(json.dumps({"url": url, "models": shown, "stats": stats}, indent=2))
        return
    _print(url, shown, stats)


def server_at(url: str, api_key: str | None, api_key_file: Path | None) -> tuple[str, str | None]:
    """Return the server's address and API key, as typed or by default."""
    url = re.sub(r"(/api)?/v1$", "", url.rstrip("/"))
    if api_key_file is not None:
        if api_key is not None:
            raise UsageError("--api-key and --api-key-file are both given; use one of them")
        api_key = _first_key(api_key_file)
    key = api_key or os.environ.get("WOOLLY_API_KEY", "").split(",")[0] or None
    return (url if "://" in url else f"http://{url}"), key


def _first_key(path: Path) -> str:
    """Return the first key of a file in the format of `woolly serve --api-key-file`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--api-key-file is {path}, which cannot be read: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise UsageError(f"--api-key-file is {path}, which has no key; write the key on the first line")
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.warn(f"others can read the key in {path}; chmod 600 would prevent it", stacklevel=1)
    return keys[0]


def models_of(url: str, key: str | None) -> list[dict[str, Any]]:
    """Return the server's information about its models, loaded or not."""
    models = ask(f"{url}/api/v1/models", key)
    if not isinstance(models, list):
        raise RequestError(f"{url} is not a Woolly server; expected the address of a `woolly serve`")
    return models


def ask(url: str, key: str | None, *, seconds: float = _TIMEOUT, post: bool = False) -> Any:
    """Return the server's JSON response. Raise RequestError with one sentence if there is none."""
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"--url is {url!r}; expected an address such as http://127.0.0.1:8080")
    where = url.split("/api/")[0]
    try:
        method = "POST" if post else "GET"
        request = urllib.request.Request(url, headers={"User-Agent": "woolly"}, method=method)
        if key:
            request.add_unredirected_header("Authorization", f"Bearer {key}")  # not sent after a redirect
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            reason = _sentence(error)
        if error.code == 401:
            wrong = "does not know this key" if key else "requires a key; pass it with --api-key-file or WOOLLY_API_KEY"
            raise RequestError(f"the server at {where} {wrong}") from None
        if error.code == 403 and reason:
            raise RequestError(f"the server at {where} refuses: {reason}") from None
        raise RequestError(f"the server at {where} answered {error.code} {error.reason} to {url}") from None
    except (OSError, ValueError) as error:
        cause: Any = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise RequestError(
                f"the certificate of {where} is not trusted ({cause.verify_message}); set SSL_CERT_FILE to its file"
            ) from None
        cause = getattr(cause, "strerror", None) or cause
        raise RequestError(
            f"no server answers at {where} ({cause}); start one with `woolly serve`, or set --url"
        ) from None


def _sentence(error: urllib.error.HTTPError) -> str | None:
    """Return the message of an error response, if it has one."""
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _names(model: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the name of a model in `woolly list`, and its other names on the server."""
    known = [str(name) for name in (model["name"], *model.get("aliases", ()))]
    name = next((name for name in known if name in WHEEL_MODELS), known[0])
    return name, [other for other in known if other != name and other not in {f"{stem}.gguf" for stem in known}]


def _print(url: str, models: list[dict[str, Any]], stats: dict[str, Any]) -> None:
    from rich.table import Table

    console = stdout_console()
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
            table.add_row(
                name, state, format_size(model["size_bytes"]), str(model["context_length"]), n, ", ".join(others)
            )
        print_table(console, table)
    else:
        click.echo(f"no model is loaded at {url}; the first request loads one", err=True)
    rate = stats.get("average_tokens_per_second")
    facts = [f"memory {stats['memory_usage_mb']:.0f} MB"] if stats.get("memory_usage_mb") else []
    facts += [f"{rate:.1f} tokens/s"] if rate else []
    facts += [f"prefix cache hits {stats['cache_hit_rate']:.0%}"] if stats.get("cache_hit_rate") else []
    if facts:
        console.print(", ".join(facts))
