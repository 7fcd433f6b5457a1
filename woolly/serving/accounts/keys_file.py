"""Keys file: named keys with their limits, as TOML. The file has only hashes of the keys.

    [keys.anna]
    hash = "sha256:9f86d081..."         # written by `woolly keys add anna`, which prints the key once
    admin = true                        # may load, configure and unload models, and see the usage of all keys
    requests_per_minute = 60
    requests_per_day = 5000
    tokens_per_minute = 20000
    tokens_per_day = 2000000
    models = ["qwen3:4b", "team-*"]     # default: all models

A key has 256 random bits and cannot be guessed, so one round of SHA-256 is enough. A slow hash such as scrypt would
protect passwords, which the file does not support, and would slow down each request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woolly.errors import RequestError
from woolly.machine.file_lock import file_lock
from woolly.serving.accounts.account import Account, KeyLimits

TABLE = "keys"
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FIELDS = ("hash", "admin", *KeyLimits.names(), "models")


@dataclass(frozen=True)
class NamedKey:
    """One table of the file: an account and the SHA-256 hash of its key."""

    account: Account
    digest: bytes


def default_file() -> Path:
    """Return the default keys file of `woolly keys`."""
    from woolly.store import models_folder

    return models_folder().parent / "keys.toml"


def hash_key(key: str) -> bytes:
    """Return the SHA-256 hash of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_keys(path: Path) -> tuple[NamedKey, ...]:
    """Return the keys of a file. Raises RequestError if the file cannot be read or is invalid."""
    content = _parsed(path, _text_of(path))
    tables = content.get(TABLE, {})
    if not isinstance(tables, dict):
        raise RequestError(f"{path}: {TABLE} is not a table; write one such as [{TABLE}.anna]")
    keys = tuple(_key_of(path, name, table) for name, table in tables.items())
    for key in keys:
        twin = next(one for one in keys if one.digest == key.digest)
        if twin is not key:
            raise RequestError(
                f"{path}: {twin.account.name} and {key.account.name} have the same key; use a different key for each"
            )
    return keys


def _key_of(path: Path, name: str, table: Any) -> NamedKey:
    where = f"{path}: [{TABLE}.{name}]"
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}: a name has at most 64 letters, digits, - and _, and begins with a letter or digit"
        )
    if not isinstance(table, dict):
        raise RequestError(f"{where} is not a table")
    unknown = sorted(set(table) - set(_FIELDS))
    if unknown:
        raise RequestError(f"unknown field {unknown[0]} in {where}; expected one of: {', '.join(_FIELDS)}")
    found = _HASH.fullmatch(table["hash"]) if isinstance(table.get("hash"), str) else None
    if found is None:
        raise RequestError(
            f"{where}: hash must be sha256: with 64 hexadecimal digits; create it with `woolly keys add`"
        )
    is_admin = table.get("admin", False)
    if not isinstance(is_admin, bool):
        raise RequestError(f"{where}: admin is {is_admin!r}; expected true or false")
    limits = {limit: _limit(where, limit, table[limit]) for limit in KeyLimits.names() if limit in table}
    account = Account(name, f"name:{name}", is_admin, KeyLimits(**limits), _models(where, table.get("models")))
    return NamedKey(account, bytes.fromhex(found[1]))


def _limit(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{where}: {name} is {value!r}; expected an integer of at least 1")
    return value


def _models(where: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise RequestError(f"{where}: models is {value!r}; expected a list of names, such as ['smollm2', 'team-*']")
    return tuple(value)


def add_key(
    path: Path, name: str, *, is_admin: bool = False, limits: Mapping[str, int], models: tuple[str, ...] = ()
) -> str:
    """Add a key to the file, creating the file if necessary, and return the key, which is not stored.

    Raises RequestError if the name is taken or invalid, or the file is invalid.
    """
    key = f"sk-woolly-{secrets.token_urlsafe(32)}"
    table: dict[str, Any] = {"hash": f"sha256:{hash_key(key).hex()}", **({"admin": True} if is_admin else {})}
    table |= {**limits, **({"models": list(models)} if models else {})}
    _key_of(path, name, table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"the folder {path.parent} cannot be used ({error.strerror or error}); choose another file with --keys-file"
        ) from None
    with file_lock(path.with_suffix(".lock"), lambda: None):
        text = _text_of(path) if path.exists() else ""
        content = _parsed(path, text)
        if path.exists():
            read_keys(path)  # reject a file with other errors
        if name in content.get(TABLE, {}):
            raise RequestError(f"{path} already has a key named {name!r}; remove it first, or choose another name")
        lines = [f"[{TABLE}.{name}]", *(f"{field} = {_toml(value)}" for field, value in table.items())]
        longer = (f"{text.rstrip()}\n\n" if text.strip() else "") + "\n".join(lines) + "\n"
        content[TABLE] = {**content.get(TABLE, {}), name: table}
        if not _says(longer, content):
            raise RequestError(f"cannot edit the format of {path}; add [{TABLE}.{name}] manually")
        _replace(path, longer)
    return key


def remove_key(path: Path, name: str) -> None:
    """Remove a key from the file. Raises RequestError if there is no key with this name."""
    if not path.exists():
        raise RequestError(f"{path} does not exist; create it with `woolly keys add`")
    with file_lock(path.with_suffix(".lock"), lambda: None):
        text = _text_of(path)
        wanted = _parsed(path, text)
        if wanted.get(TABLE, {}).pop(name, None) is None:
            raise RequestError(f"{path} has no key named {name!r}; see `woolly keys list`")
        left = _without(text, name)
        if not _says(left, wanted):
            raise RequestError(f"cannot edit the format of {path}; remove {name} manually")
        _replace(path, left)


def _without(text: str, name: str) -> str:
    """Return the text without the table of a key, which ends at the next table header."""
    kept: list[str] = []
    is_inside = False
    for line in text.split("\n"):  # splitlines would also split at U+2028 within a string
        if line.lstrip().startswith("["):
            is_inside = line.partition("#")[0].strip() == f"[{TABLE}.{name}]"
        if not is_inside:
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def _says(text: str, content: Mapping[str, Any]) -> bool:
    """Return True if the text is TOML with exactly this content; an empty keys table equals a missing one."""
    try:
        found = _parsed(Path(), text)
    except RequestError:
        return False
    return _without_empty(found) == _without_empty(content)


def _without_empty(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != TABLE or value}


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically. An existing file keeps its mode and owner; a new file is private."""
    target = path.resolve()  # keep symbolic links
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as other:
        other.write(text)
        other.flush()
        os.fsync(other.fileno())
    if target.exists():
        before = target.stat()
        if sys.platform != "win32":
            # If root runs the command, the file must stay readable for the server's user.
            with contextlib.suppress(OSError):
                os.chown(other.name, before.st_uid, before.st_gid)
        Path(other.name).chmod(before.st_mode & 0o777)
    Path(other.name).replace(target)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int):
        return str(value)
    # JSON's escapes are valid TOML except for surrogate pairs; JSON does not escape DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise RequestError(f"keys_file is {path}, which cannot be read: {reason}", field="keys_file") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{path} is not valid TOML: {error}; correct this line") from None
    except RecursionError:
        raise RequestError(f"{path} is not a file of keys: its values are nested too deeply") from None
