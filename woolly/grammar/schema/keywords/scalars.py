"""Keywords of types, numbers and strings."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from woolly.errors import RequestError
from woolly.grammar.schema.documents import Node
from woolly.grammar.schema.expand import Expander, Keyword
from woolly.grammar.schema.facts import Alternatives, Kind, Multiple, NumberBound, TextIn
from woolly.grammar.schema.formats import read_format
from woolly.grammar.schema.language import length, negate
from woolly.grammar.schema.numbers import exact
from woolly.grammar.schema.pattern import read_pattern

_TYPES = {"null", "boolean", "number", "integer", "string", "array", "object"}


def _types(x: Expander, node: Node, value: Any) -> set[str]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise RequestError(f"the JSON schema cannot be used: Invalid type: {str(name)[:40]} at {node.pointer}")
    return set(names)


def _type(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    names = _types(x, node, value)
    if kind == "number" and "number" not in names:
        return [(Kind("integer"),)] if "integer" in names else []
    return [()] if kind in names else []


def _not_type(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    names = _types(x, node, value)
    if kind == "number" and "integer" in names and "number" not in names:
        return [(Kind("fraction"),)]
    return [] if kind in names else [()]


def _number(x: Expander, node: Node, keyword: str, value: Any) -> Decimal:
    number = exact(value)
    if number is None:
        raise x.invalid(node, keyword, "a number", value)
    return number


def _bound(keyword: str, is_low: bool, is_exclusive: bool, is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        is_open = is_exclusive
        if isinstance(value, bool) and is_exclusive:
            return [()] if is_positive else []  # draft 4: part of minimum or maximum
        if node.schema.get("exclusiveMinimum" if is_low else "exclusiveMaximum") is True:
            is_open = True
        number = _number(x, node, keyword, value)
        if is_positive:
            return [(NumberBound(number, is_low, is_open),)]
        return [(NumberBound(number, not is_low, not is_open),)]

    return expand


def _multiple(is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        number = _number(x, node, "multipleOf", value)
        if number <= 0:
            raise x.invalid(node, "multipleOf", "a number above 0", value)
        if number == 1:
            return [(Kind("integer" if is_positive else "fraction"),)]
        if not is_positive:
            raise x.unsupported(node, "multipleOf", "put no multipleOf inside 'not', 'if' and overlapping oneOf")
        return [(Multiple(Fraction(number)),)]

    return expand


def count(x: Expander, node: Node, keyword: str, value: Any) -> int:
    """Return a number of characters, items or properties."""
    number = exact(value)
    if number is None or number < 0 or number != number.to_integral_value():
        raise x.invalid(node, keyword, "a whole number from 0 on", value)
    if number > 1 << 31:
        raise RequestError(f"the JSON schema cannot be used: {keyword} {number} at {node.pointer} is too large")
    return int(number)


def _min_length(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    n = count(x, node, "minLength", value)
    return [(TextIn(length(n, None)),)] if n else [()]


def _max_length(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(TextIn(length(0, count(x, node, "maxLength", value))),)]


def _not_min_length(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    n = count(x, node, "minLength", value)
    return [(TextIn(length(0, n - 1)),)] if n else []


def _not_max_length(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(TextIn(length(count(x, node, "maxLength", value) + 1, None)),)]


def _pattern(is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        if not isinstance(value, str):
            raise x.invalid(node, "pattern", "a string", value)
        language = read_pattern(value)
        return [(TextIn(language if is_positive else negate(language)),)]

    return expand


def _format(is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        if not isinstance(value, str):
            raise x.invalid(node, "format", "a string", value)
        language = read_format(value)
        if language is None:
            raise RequestError(
                f"the JSON schema cannot be used: format {value[:60]!r} is not one that can be kept; remove it, or say"
                " it with 'pattern'"
            )
        return [(TextIn(language if is_positive else negate(language)),)]

    return expand


_NUMBER = ("number",)
_STRING = ("string",)
_BOUNDS = {
    "minimum": (True, False),
    "exclusiveMinimum": (True, True),
    "maximum": (False, False),
    "exclusiveMaximum": (False, True),
}
POSITIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    "type": (None, _type),
    **{name: (_NUMBER, _bound(name, *sides, True)) for name, sides in _BOUNDS.items()},
    "multipleOf": (_NUMBER, _multiple(True)),
    "minLength": (_STRING, _min_length),
    "maxLength": (_STRING, _max_length),
    "pattern": (_STRING, _pattern(True)),
    "format": (_STRING, _format(True)),
}
NEGATIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    "type": (None, _not_type),
    **{name: (_NUMBER, _bound(name, *sides, False)) for name, sides in _BOUNDS.items()},
    "multipleOf": (_NUMBER, _multiple(False)),
    "minLength": (_STRING, _not_min_length),
    "maxLength": (_STRING, _not_max_length),
    "pattern": (_STRING, _pattern(False)),
    "format": (_STRING, _format(False)),
}
