"""JSON files of a checkpoint, read with bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from woolly.errors import ModelError

# The largest tokenizer.json in use has about 35 MB.
_MAX_BYTES = 256 << 20


def read_json(path: Path, *, optional: bool = False, of: str = "model on the hub") -> dict[str, Any]:
    """Returns the object in a JSON file; empty if the file is `optional` and absent; ModelError if it is unsound.

    `of` says whose folder was expected, for the error.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path}: the file is larger than {_MAX_BYTES >> 20} MB; expected JSON of a checkpoint")
        data = path.read_bytes()
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelError(f"{path.parent}: there is no {path.name}; expected the folder of a {of}") from None
    except OSError as error:
        raise ModelError(f"{path}: the file cannot be read ({error.strerror or error})") from error
    return parse_json(data, str(path))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Returns the object that `data` holds; ModelError that names `where` if there is none."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ModelError(f"{where}: the JSON is nested too deeply") from None
    except ValueError as error:  # also UnicodeDecodeError, and numbers of too many digits
        raise ModelError(f"{where}: this is not valid JSON ({str(error)[:120]})") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
