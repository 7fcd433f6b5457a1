"""Config: MCP servers of a file in the usual format, `{"mcpServers": {"time": {"command": "..."}}}`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woolly.errors import RequestError

_TIMEOUT = 30.0  # maximum seconds for starting a server or for a call
_KEYS = {"command", "args", "env", "cwd", "url", "headers", "timeout_ms", "type", "transport", "disabled"}
_HTTP = {"http", "streamable-http", "streamable_http", "streamablehttp"}
# ${NAME}, ${env:NAME} and ${NAME:-default}, so that the file need not contain secrets.
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class ServerSpec:
    """Server with a command to start it (`command`) or an address (`url`), but not both."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = _TIMEOUT  # seconds


@dataclass(frozen=True)
class Config:
    """Servers of a file, and its unknown keys, which are ignored."""

    servers: tuple[ServerSpec, ...]
    ignored: tuple[str, ...] = ()


def read_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Return the enabled servers. Raise RequestError with the file name and the reason if the file is invalid."""
    try:
        data = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, RuntimeError) as error:
        raise _error(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise _error(f"{path} is not valid JSON ({error})") from None
    table = None
    if isinstance(data, dict):
        table = data.get("mcpServers", data.get("servers"))  # "servers" is used by VS Code
    if not isinstance(table, dict):
        raise _error(f'{path} has no servers; expected {{"mcpServers": {{"name": {{"command": ...}}}}}}')
    servers, ignored = [], []
    for name, given in table.items():
        if not isinstance(given, dict):
            raise _error(f"{path}: {name} is not an object; expected one with a command or url")
        if given.get("disabled") is True:
            continue
        ignored += [f"{name}.{key}" for key in given if key not in _KEYS]
        servers.append(_Reader(path, name, given, environment).spec())
    return Config(tuple(servers), tuple(ignored))


def _error(message: str) -> RequestError:
    return RequestError(message, field="mcp")


class _Reader:
    """Parses the fields of a server."""

    def __init__(self, path: Path, name: str, given: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._place, self._name, self._given, self._environment = f"{path}: {name}", name, given, environment

    def spec(self) -> ServerSpec:
        command, url = self._text("command"), self._text("url")
        if (command is None) == (url is None):
            raise _error(f"{self._place} needs either a command or a url, but not both")
        kind = str(self._given.get("type", self._given.get("transport", ""))).lower()
        if kind == "sse":
            raise _error(f"{self._place} is of type sse, which MCP has removed; use a streamable HTTP url")
        if kind and kind not in (_HTTP if command is None else {"stdio"}):
            raise _error(f"{self._place} is of type {kind!r}; expected stdio with a command, or http with a url")
        if url is not None and not url.startswith(("http://", "https://")):
            raise _error(f"{self._place} has the url {url!r}; expected http:// or https://")
        return ServerSpec(
            self._name,
            command,
            self._texts("args"),
            self._table("env"),
            self._text("cwd"),
            url,
            self._table("headers"),
            self._timeout(),
        )

    def _text(self, key: str) -> str | None:
        value = self._given.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise _error(f"{self._place} has {key} {value!r}; expected a string")
        return self._expand(value)

    def _texts(self, key: str) -> tuple[str, ...]:
        values = self._given.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise _error(f"{self._place} has {key} {values!r}; expected a list of strings")
        return tuple(self._expand(value) for value in values)

    def _table(self, key: str) -> dict[str, str]:
        values = self._given.get(key, {})
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise _error(f"{self._place} has an invalid {key}; expected an object of strings")  # may contain a secret
        return {name: self._expand(value) for name, value in values.items()}

    def _timeout(self) -> float:
        value = self._given.get("timeout_ms", _TIMEOUT * 1000)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 86_400_000:
            raise _error(f"{self._place} has timeout_ms {value!r}; expected milliseconds up to one day")
        return value / 1000

    def _expand(self, text: str) -> str:
        def value_of(match: re.Match[str]) -> str:
            name, default = match.groups()
            if (value := self._environment.get(name, default)) is None:
                raise _error(f"{self._place} uses ${{{name}}}, which is not set in the environment")
            return value

        return _VARIABLE.sub(value_of, text)
