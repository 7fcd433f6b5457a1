"""Keywords of objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from woolly.errors import RequestError
from woolly.grammar.schema.constants import MAX_LITERAL
from woolly.grammar.schema.documents import Node
from woolly.grammar.schema.expand import Expander, Keyword, product
from woolly.grammar.schema.facts import (
    Alternatives,
    Count,
    Exists,
    Fact,
    Matching,
    Names,
    Openness,
    Others,
    Presence,
    Property,
)
from woolly.grammar.schema.keywords.scalars import count
from woolly.grammar.schema.language import ANY, Language
from woolly.grammar.schema.pattern import read_pattern
from woolly.grammar.schema.shapes import text_language

_OPENING = ("additionalProperties", "unevaluatedProperties")


def _schemas(x: Expander, node: Node, keyword: str) -> Iterator[tuple[str, Node]]:
    value = node.schema.get(keyword, {})
    if not isinstance(value, dict):
        raise x.invalid(node, keyword, "an object of schemas", value)
    for name, schema in value.items():
        if len(name) > MAX_LITERAL:
            raise RequestError(
                f"the JSON schema has {len(name)} characters in a name of {keyword!r} at {node.pointer}; the maximum"
                f" is {MAX_LITERAL}"
            )
        yield name, x.child(node, schema, f"{keyword}/{name}")


def _properties(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    facts: list[Fact] = [Property(name, x.conjunction(child)) for name, child in _schemas(x, node, "properties")]
    if not any(keyword in node.schema for keyword in _OPENING):
        facts.append(Openness(False))
    return [tuple(facts)]


def _not_properties(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [
        (Presence(name, True), Property(name, x.conjunction(child, False)))
        for name, child in _schemas(x, node, "properties")
    ]


def _matching(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    found = _schemas(x, node, "patternProperties")
    return [tuple(Matching(read_pattern(name), x.conjunction(child)) for name, child in found)]


def _not_matching(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [
        (Exists(frozenset(), read_pattern(name), (), x.conjunction(child, False)),)
        for name, child in _schemas(x, node, "patternProperties")
    ]


def _own(x: Expander, node: Node) -> tuple[frozenset[str], tuple[Language, ...]]:
    names = frozenset(name for name, _ in _schemas(x, node, "properties"))
    return names, tuple(read_pattern(name) for name, _ in _schemas(x, node, "patternProperties"))


def _additional(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    child = x.child(node, value, "additionalProperties")
    return [(Others(*_own(x, node), x.conjunction(child)), Openness(True))]


def _not_additional(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    child = x.child(node, value, "additionalProperties")
    if child.schema is True:
        return []
    names, languages = _own(x, node)
    return [(Exists(names, ANY, languages, x.conjunction(child, False)),)]


def _names(x: Expander, node: Node, keyword: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise x.invalid(node, keyword, "a list of names", value)
    return value


def _required(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    if isinstance(value, bool):
        raise x.invalid(node, "required", "a list of names, as in draft 4 and later", value)
    return [tuple(Presence(name, True) for name in _names(x, node, "required", value))]


def _not_required(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Presence(name, False),) for name in _names(x, node, "required", value)]


def _property_names(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Names(x.conjunction(x.child(node, value, "propertyNames"))),)]


def _not_property_names(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    others = x.conjunction(x.child(node, value, "propertyNames"), False)
    language = text_language(x, others)
    return [(Exists(frozenset(), language, (), frozenset()),)] if language is not None else []


def _min_properties(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Count(count(x, node, "minProperties", value), None),)]


def _max_properties(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Count(0, count(x, node, "maxProperties", value)),)]


def _not_min_properties(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    n = count(x, node, "minProperties", value)
    return [(Count(0, n - 1),)] if n else []


def _not_max_properties(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Count(count(x, node, "maxProperties", value) + 1, None),)]


def _dependent(keyword: str, is_positive: bool) -> Keyword:
    """Return the alternatives of names that require other names, or a schema."""

    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        if not isinstance(value, dict):
            raise x.invalid(node, keyword, "an object", value)
        parts: list[Alternatives] = []
        for name, needed in value.items():
            there = Presence(name, True)
            if isinstance(needed, list):
                others = _names(x, node, keyword, needed)
                if is_positive:
                    parts.append([(Presence(name, False),), (there, *(Presence(other, True) for other in others))])
                else:
                    parts += [[(there, Presence(other, False))] for other in others]
                continue
            found = x.expand(x.child(node, needed, f"{keyword}/{name}"), is_positive, kind)
            with_it = product([[(there,)], found], kind)
            parts.append([(Presence(name, False),), *with_it] if is_positive else with_it)
        return product(parts, kind) if is_positive else [option for part in parts for option in part]

    return expand


_OBJECT = ("object",)
_DEPENDENT = ("dependencies", "dependentRequired", "dependentSchemas")
POSITIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    "properties": (_OBJECT, _properties),
    "patternProperties": (_OBJECT, _matching),
    "additionalProperties": (_OBJECT, _additional),
    "required": (_OBJECT, _required),
    "propertyNames": (_OBJECT, _property_names),
    "minProperties": (_OBJECT, _min_properties),
    "maxProperties": (_OBJECT, _max_properties),
    **{name: (_OBJECT, _dependent(name, True)) for name in _DEPENDENT},
}
NEGATIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    "properties": (_OBJECT, _not_properties),
    "patternProperties": (_OBJECT, _not_matching),
    "additionalProperties": (_OBJECT, _not_additional),
    "required": (_OBJECT, _not_required),
    "propertyNames": (_OBJECT, _not_property_names),
    "minProperties": (_OBJECT, _not_min_properties),
    "maxProperties": (_OBJECT, _not_max_properties),
    **{name: (_OBJECT, _dependent(name, False)) for name in _DEPENDENT},
}
