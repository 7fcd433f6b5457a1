"""Converts Google's schemas to JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woolly.serving.errors import invalid_param

_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_SAME = ("title", "description", "default", "enum", "pattern", "minimum", "maximum", "required")
_FORMATS = ("date-time", "date", "time", "duration", "uuid", "email")  # other formats are sizes of numbers


def json_schema(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert a schema of Google's API to JSON Schema. Raises ApiError for invalid parts."""
    found: dict[str, Any] = {name: given[name] for name in _SAME if given.get(name) is not None}
    kind = str(given.get("type", "")).lower()
    if kind and kind != "type_unspecified":
        if kind not in _TYPES:
            raise invalid_param(f"{where}.type", f"expected one of: {', '.join(_TYPES).upper()}, but got {kind[:40]!r}")
        found["type"] = kind
    for name in _COUNTS:
        if given.get(name) is not None:
            found[name] = _as_int(given[name], f"{where}.{name}")
    if given.get("format") in _FORMATS:
        found["format"] = given["format"]
    if isinstance(given.get("items"), Mapping):
        found["items"] = json_schema(given["items"], f"{where}.items")
    if isinstance(members := given.get("properties"), Mapping):
        order = [name for name in given.get("propertyOrdering") or () if name in members]
        names = dict.fromkeys((*order, *members))
        found["properties"] = {name: json_schema(members[name], f"{where}.properties.{name}") for name in names}
    if isinstance(given.get("anyOf"), list):
        found["anyOf"] = [json_schema(one, f"{where}.anyOf.{i}") for i, one in enumerate(given["anyOf"])]
    if given.get("nullable"):
        return {"anyOf": [found, {"type": "null"}]}
    return found


def _as_int(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise invalid_param(where, f"expected an integer, but got {str(value)[:40]!r}") from None
