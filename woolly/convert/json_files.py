"""JSON files of a checkpoint, read with size limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from woolly.errors import ModelError

# The largest known tokenizer.json has 35 MB.
_MAX_BYTES = 256 << 20


def read_json(path: Path, *, optional: bool = False, of: str = "model on the hub") -> dict[str, Any]:
    """Return the object in a JSON file. Raise ModelError if it is invalid.

    If the file is `optional` and missing, return an empty object. `of` names the expected contents of the folder in
    errors.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(
                f"{path}: the file is larger than {_MAX_BYTES >> 20} MB, the maximum for JSON of a checkpoint"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelError(f"{path.parent}: {path.name} is missing; expected the folder of a {of}") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot read the file ({error.strerror or error})") from error
    return parse_json(data, str(path))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object. Raise a ModelError that names `where` if it is invalid."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ModelError(f"{where}: the JSON is nested too deeply") from None
    except ValueError as error:  # also UnicodeDecodeError, and numbers with too many digits
        raise ModelError(f"{where}: not valid JSON ({str(error)[:120]})") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
