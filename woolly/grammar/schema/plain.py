"""Plain schemas, which llguidance itself translates exactly and several times faster than their Lark."""

from __future__ import annotations

import re
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
_TYPES = frozenset({"null", "boolean", "number", "integer", "string", "array", "object"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_BOUNDS = frozenset({"minimum", "maximum"})
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# Anchored sequences of characters and classes that JSON spells in one way, without groups and alternatives.
_PATTERN = re.compile(r"\^(?:(?:[\w :/#@-]|\[(?:\w-\w|\w)+-?\])(?:[+*?]|\{\d\d?(?:,(?:\d\d?)?)?\})?)+\$", re.ASCII)
_RANGE = re.compile(r"(\w)-(\w)|\{(\d+),(\d+)\}", re.ASCII)
_MAX_PATTERN = 100
_EXACT = 1 << 53
_LONGEST = 1_000  # characters of a name or constant
_MAX_PROPERTIES = 500
_MAX_COUNT = 10_000
_MAX_DEPTH = 60


def plain_schema(root: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema for llguidance; None if it uses more than the plainest keywords.

    Objects with properties are closed, and no two schemas apply to one value.
    """
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    if any(not isinstance(value, dict) for value in definitions.values()):
        return None
    try:
        schema = _copy({name: value for name, value in root.items() if name not in ("$schema", *definitions)}, root, 0)
        for keyword, schemas in definitions.items():
            schema[keyword] = {name: _copy(value, root, 0) for name, value in schemas.items()}
    except _NotPlainError:
        return None
    return schema


class _NotPlainError(Exception):
    """Schema with more than the plainest keywords."""


def _need(condition: object) -> None:
    if not condition:
        raise _NotPlainError


def _copy(schema: Any, root: dict[str, Any], depth: int) -> dict[str, Any]:
    _need(isinstance(schema, dict) and depth < _MAX_DEPTH)
    out: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword == "type":
            _need(value in _TYPES if isinstance(value, str) else _is_list_of_types(value))
        elif keyword in _COUNTS:
            _need(type(value) is int and 0 <= value <= _MAX_COUNT)
        elif keyword in _BOUNDS:
            _need(type(value) is int and abs(value) < _EXACT)
        elif keyword == "required":
            _need(isinstance(value, list) and isinstance(schema.get("properties"), dict))
            _need(all(isinstance(name, str) and name in schema["properties"] for name in value))
        elif keyword in ("enum", "const"):
            _need(keyword == "const" or (isinstance(value, list) and value))
            _need(all(map(_is_plain_constant, value if keyword == "enum" else [value])))
            _need(len(schema.keys() - _ANNOTATIONS - {"type"}) == 1)
        elif keyword == "properties":
            value = _properties(value, root, depth)
            _need(schema.get("additionalProperties", False) is False)
            out["additionalProperties"] = False
        elif keyword == "additionalProperties":
            if value is not False or not schema.keys() & {"properties", "patternProperties"}:
                _need("properties" not in schema and isinstance(value, dict))
                value = _copy(value, root, depth + 1)
        elif keyword == "patternProperties":
            _need(isinstance(value, dict) and len(value) == 1 and all(map(_is_plain_pattern, value)))
            _need(schema.get("type") == "object" and schema.get("additionalProperties") is False)
            _need("properties" not in schema)
            value = {pattern: _copy(child, root, depth + 1) for pattern, child in value.items()}
        elif keyword == "pattern":
            _need(schema.get("type") == "string" and _is_plain_pattern(value))
            _need(not schema.keys() & {"minLength", "maxLength"})
        elif keyword == "items":
            value = _copy(value, root, depth + 1)
        elif keyword == "anyOf":
            _need(isinstance(value, list) and value and len(schema.keys() - _ANNOTATIONS - _LOCAL) == 1)
            value = [_copy(option, root, depth + 1) for option in value]
        elif keyword == "$ref":
            _need(len(schema.keys() - _ANNOTATIONS - _LOCAL) == 1 and _is_defined(value, root))
        else:
            raise _NotPlainError
        out[keyword] = value
    low, high = out.get("minimum"), out.get("maximum")
    _need(low is None or high is None or low <= high)
    for name in ("Length", "Items"):
        _need(out.get(f"min{name}", 0) <= out.get(f"max{name}", _MAX_COUNT))
    return out


_LOCAL = frozenset({"$schema", "$defs", "definitions"})


def _properties(value: Any, root: dict[str, Any], depth: int) -> dict[str, Any]:
    _need(isinstance(value, dict) and len(value) <= _MAX_PROPERTIES)
    _need(all(len(name) <= _LONGEST and not _CONTROL.search(name) for name in value))
    return {name: _copy(schema, root, depth + 1) for name, schema in value.items()}


def _is_plain_pattern(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _MAX_PATTERN or not _PATTERN.fullmatch(value):
        return False
    return all(
        low < high and any(low in part and high in part for part in (digits, ascii_lowercase, ascii_uppercase))
        if low
        else int(least) <= int(most)
        for low, high, least, most in _RANGE.findall(value)
    )


def _is_list_of_types(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name in _TYPES for name in value)


def _is_plain_constant(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST and not _CONTROL.search(value)
    return value is None or isinstance(value, bool) or (type(value) is int and abs(value) < _EXACT)


def _is_defined(reference: Any, root: dict[str, Any]) -> bool:
    """Return True if a reference has a definition at the root that is no reference itself."""
    found = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    target = root.get(found[1], {}).get(found[2]) if found is not None else None
    return isinstance(target, dict) and "type" in target
