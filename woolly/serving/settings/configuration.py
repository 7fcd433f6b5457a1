"""Reads the settings from flags, the environment, woolly.toml and the defaults, in this order."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any

from woolly.errors import RequestError
from woolly.serving.settings.sampling_settings import WHOLE_TEXTS
from woolly.serving.settings.table import Settings
from woolly.store import expand_home

FILE_NAME = "woolly.toml"  # in the working directory; WOOLLY_CONFIG or --config names another file
TABLE = "serve"
log = logging.getLogger("woolly.serving")
_OTHER_TABLES = {"keys": "keys_file", "models": "names_file"}  # other tables, and the setting that names their file
# String settings that may be paths; the other paths have the type Path.
_FILES = (
    *("model", "preload", "model_draft", "mmproj"),
    *("lora", "lora_scaled", "control_vector", "control_vector_scaled"),
)
# Settings that restrict access. `--api-key "$KEY"` with an unset KEY must not disable the check.
_GUARDS = ("api_key", "api_key_file", "admin_key", "admin_key_file", "keys_file", "oidc_issuer")


def environment_name(setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"WOOLLY_{setting.upper()}"


def kind_of(setting: str) -> type:
    """Return the type that a string is converted to: str, int, float, bool, Path, or tuple for a list."""
    kinds = _kinds(setting)
    return kinds[0] if len(kinds) == 1 else str


def _kinds(setting: str) -> tuple[type, ...]:
    """Return the types that a value may have, without None."""
    hint = _hints()[setting]
    if typing.get_origin(hint) is tuple:
        return (tuple,)
    return tuple(kind for kind in typing.get_args(hint) if kind is not NoneType) or (hint,)


@functools.cache
def _hints() -> dict[str, Any]:
    """Return the type hints of all settings. Cached because the evaluation takes 3 ms and `serve` needs every hint."""
    return typing.get_type_hints(Settings)


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings, each from its first source. `flags` may name the file as `config`."""
    given = dict(flags)
    path = given.pop("config", None) or environment.get("WOOLLY_CONFIG")
    values = _of_file(_at_home(Path(path or FILE_NAME)), required=path is not None)
    names = {environment_name(setting.name): setting.name for setting in fields(Settings)}
    for name, setting in names.items():
        if setting not in given:
            _check_guard(name, setting, environment.get(name), "unset it")
        if environment.get(name):
            values[setting] = _of_text(name, setting, environment[name])
    for name in environment.keys() - names.keys():
        # Unknown variables may belong to other programs, so only likely typos are reported.
        near = difflib.get_close_matches(name, names, 1, 0.9) if name.startswith("WOOLLY_") else ()
        if near:
            log.warning("unknown environment variable %s: did you mean %s?", name, near[0])
    for name, value in given.items():
        _check_guard(name, name, value, "remove it")
        values[name] = _list_of(name, value) if kind_of(name) is tuple else value
    files = {name for name in values if name in _FILES or kind_of(name) is Path}
    return Settings(**values | {name: _at_home(values[name]) for name in files})


def _at_home(value: Any) -> Any:
    """Expand ~ in a path or a list of paths; shells do not expand it in files and in --model=~/x."""
    if isinstance(value, tuple):
        return tuple(map(_at_home, value))
    return None if value is None else type(value)(expand_home(str(value)))


def _check_guard(source: str, name: str, value: Any, otherwise: str) -> None:
    """Raise RequestError for an empty value of a setting that restricts access."""
    texts = value if isinstance(value, (list, tuple)) else [value]
    is_empty = bool(texts) and all(isinstance(text, str) and not text.strip(" ,") for text in texts)
    if name in _GUARDS and is_empty:
        raise RequestError(f"{source} is empty and would allow all clients; set a value, or {otherwise}", field=name)


def _of_text(source: str, name: str, text: str) -> Any:
    kind = kind_of(name)
    if kind is tuple:
        return _list_of(name, [text])
    if kind is bool:
        if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            raise RequestError(f"{source} is {text!r}; expected true or false")
        return text.lower() in ("1", "true", "yes", "on")
    try:
        return kind(text)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise RequestError(f"{source} is {text!r}; expected {what}") from None


def _of_file(path: Path, *, required: bool) -> dict[str, Any]:
    if not required and not path.is_file():
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{path} is not valid TOML: {error}; correct this line") from None
    table = content.get(TABLE, {})
    # The tables are read from this file unless [serve] names another file.
    named = {setting: path for name, setting in _OTHER_TABLES.items() if name in content}
    if not isinstance(table, dict):
        raise RequestError(f"{path}: [{TABLE}] must be a table")
    known = {setting.name for setting in fields(Settings)}
    _check_outside(path, content, known)
    values: dict[str, Any] = {**named}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}?" if near else "`woolly serve --help` lists them"
            raise RequestError(f"{path}: unknown setting {key} in [{TABLE}]: {meant}")
        _check_guard(f"{path}: {key}", name, value, "remove it")
        values[name] = checked_value(f"{path}: {key}", name, value)
    return values


def _check_outside(path: Path, content: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise RequestError for misplaced settings. Other keys may belong to other programs."""
    for key in sorted(content.keys() - {TABLE, *_OTHER_TABLES}):
        if isinstance(content[key], dict):
            if difflib.get_close_matches(key, (TABLE,), 1, 0.8):
                raise RequestError(f"{path}: [{key}] has no effect: did you mean [{TABLE}]?")
            continue
        name = key.replace("-", "_")
        near = [name] if name in known else difflib.get_close_matches(name, known, 1, 0.8)
        if near:
            meant = "write it" if name in known else f"did you mean {near[0]}? Write it"
            raise RequestError(f"{path}: {key} has no effect outside a table: {meant} below a line [{TABLE}]")


def checked_value(source: str, name: str, value: Any) -> Any:
    """Convert a value of TOML or JSON to the type of its setting. Raises RequestError for a wrong type."""
    kind = kind_of(name)
    if kind is tuple:
        return _list_of(name, value if isinstance(value, list) else [value], source)
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) not in _kinds(name):
        types = " or ".join(one.__name__ for one in _kinds(name))
        raise RequestError(f"{source} is {value!r}; expected a value of type {types}")
    return value


def _list_of(name: str, values: Any, source: str = "a list") -> tuple[str, ...]:
    """Return the strings of a list, each of which may have several, separated by commas."""
    if not all(isinstance(value, str) for value in values):
        raise RequestError(f"{source} is {values!r}; expected a list of strings")
    if name in WHOLE_TEXTS:
        return tuple(values)
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
