"""Conversion of argument values to the JSON that the tool's schema expects."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, NoReturn

_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def to_json(value: object) -> str:
    """Return JSON text without escaping non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def is_text(schema: object) -> bool:
    """Return True if a schema accepts only strings, so a value is known to be a string before it is complete."""
    if not isinstance(schema, Mapping):
        return False
    if isinstance(options := schema.get("enum"), list) and options:
        return all(isinstance(option, str) for option in options)
    return schema.get("type") == "string"


def typed_json(raw: str, schema: object) -> str:
    """Return the JSON text of an unquoted value: a string, or a JSON value if the schema also accepts other types."""
    text = raw.strip()
    if is_text(schema):
        return to_json(raw)
    if _may_be_text(schema):
        return "null" if text in ("null", "None") else to_json(raw)
    return _read_json(text) or _WORDS.get(text.lower()) or _read_python(text) or to_json(raw)


def python_json(raw: str) -> str:
    """Return the JSON text of a Python or JSON literal. Other text becomes a string."""
    text = raw.strip()
    if found := _read_json(text) or _WORDS.get(text.lower()):
        return found
    for form in (text, text.replace("\r", "\\r").replace("\n", "\\n")):  # a string of several lines
        try:
            return to_json(ast.literal_eval(form))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":  # it contains quotes that are not escaped
        return to_json(text[1:-1])
    return to_json(text)


def _read_python(text: str) -> str | None:
    """Return the JSON of a list or mapping written as Python."""
    if not text.startswith(("[", "{", "(")):
        return None
    try:
        return to_json(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _may_be_text(schema: object) -> bool:
    """Return True if a schema accepts strings and null, but nothing else."""
    if not isinstance(schema, Mapping):
        return False
    kinds: Any = schema.get("type")
    if isinstance(options := schema.get("anyOf"), list):
        kinds = [option.get("type") if isinstance(option, Mapping) else None for option in options]
    return isinstance(kinds, list) and "string" in kinds and all(kind in ("string", "null") for kind in kinds)


def _read_json(text: str) -> str | None:
    """Return the text if it is JSON."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)  # NaN and Infinity are not JSON
