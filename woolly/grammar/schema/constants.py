"""Constants: the alternatives of const and enum."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.grammar.schema.expand import product
from woolly.grammar.schema.facts import Alternatives, Count, Exists, Item, Others, Presence, Property, Tail, Values
from woolly.grammar.schema.language import ANY
from woolly.grammar.schema.numbers import exact

if TYPE_CHECKING:
    from woolly.grammar.schema.documents import Node
    from woolly.grammar.schema.expand import Expander

# The time of a mask grows with the length of the current literal: 30 ms for 10 KB, 1.5 s for 500 KB.
MAX_LITERAL = 10_000
_KINDS = {
    bool: "boolean",
    int: "number",
    float: "number",
    Decimal: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def kind_of(value: Any) -> str:
    """Return the type of a JSON value."""
    return _KINDS.get(type(value), "null")


def scalar(value: Any) -> bool | Decimal | str:
    """Return a boolean, number or string in the form that facts use."""
    if isinstance(value, (bool, str)):
        return value
    number = exact(value)
    assert number is not None
    return number


def constants(x: Expander, node: Node, values: list[Any], kind: str) -> Alternatives:
    """Return the alternatives of a value that equals one of some constants."""
    same = [value for value in values if kind_of(value) == kind]
    _check(node, same)
    if not same:
        return []
    if kind == "null":
        return [()]
    if kind in ("boolean", "number", "string"):
        return [(Values(frozenset(map(scalar, same))),)]
    return [_array(x, value) if kind == "array" else _object(x, value) for value in same]


def _array(x: Expander, value: list[Any]) -> tuple[Any, ...]:
    items = [Item(i, x.conjunction(x.synthetic({"const": item})), is_seen=False) for i, item in enumerate(value)]
    return (*items, Tail(len(value), x.conjunction(x.false), is_seen=False), Count(len(value), len(value)))


def _object(x: Expander, value: dict[str, Any]) -> tuple[Any, ...]:
    facts: list[Any] = []
    for name, member in value.items():
        facts += [Property(name, x.conjunction(x.synthetic({"const": member})), is_seen=False), Presence(name, True)]
    return (*facts, Others(frozenset(value), (), x.conjunction(x.false), is_seen=False))


def not_constants(x: Expander, node: Node, values: list[Any], kind: str) -> Alternatives:
    """Return the alternatives of a value that equals none of some constants."""
    same = [value for value in values if kind_of(value) == kind]
    _check(node, same)
    if not same:
        return [()]
    if kind == "null":
        return []
    if kind in ("boolean", "number", "string"):
        return [(Values(frozenset(map(scalar, same)), is_positive=False),)]
    return product([_not_array(x, value) if kind == "array" else _not_object(x, value) for value in same], kind)


def _not_array(x: Expander, value: list[Any]) -> Alternatives:
    result: Alternatives = [(Count(len(value) + 1, None),)]
    if value:
        result.append((Count(0, len(value) - 1),))
    for i, item in enumerate(value):
        other = x.conjunction(x.synthetic({"const": item}), is_positive=False)
        result.append((Count(i + 1, None), Item(i, other, is_seen=False)))
    return result


def _not_object(x: Expander, value: dict[str, Any]) -> Alternatives:
    result: Alternatives = [(Exists(frozenset(value), ANY, (), frozenset()),)]
    for name, member in value.items():
        other = x.conjunction(x.synthetic({"const": member}), is_positive=False)
        result += [(Presence(name, False),), (Presence(name, True), Property(name, other, is_seen=False))]
    return result


def _check(node: Node, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, (str, list, dict)) and (length := len(json.dumps(value, default=str))) > MAX_LITERAL:
            keyword = "const" if isinstance(node.schema, dict) and "const" in node.schema else "enum"
            raise RequestError(
                f"the JSON schema has {length} characters in a value of {keyword!r} at {node.pointer}; the maximum is"
                f" {MAX_LITERAL}"
            )
