"""Keywords of arrays."""

from __future__ import annotations

from typing import Any

from woolly.grammar.schema.documents import Node
from woolly.grammar.schema.expand import Expander, Keyword
from woolly.grammar.schema.facts import Alternatives, Contains, Count, Item, Tail, Unique
from woolly.grammar.schema.keywords.scalars import count


def _prefix(keyword: str, is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        if not isinstance(value, list):
            raise x.invalid(node, keyword, "a list of schemas", value)
        nodes = [x.child(node, item, f"{keyword}/{i}") for i, item in enumerate(value)]
        if is_positive:
            return [tuple(Item(i, x.conjunction(item)) for i, item in enumerate(nodes))]
        return [(Count(i + 1, None), Item(i, x.conjunction(item, False))) for i, item in enumerate(nodes)]

    return expand


def _items(is_positive: bool) -> Keyword:
    prefix = _prefix("items", is_positive)

    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        if isinstance(value, list):
            return prefix(x, node, value, kind)
        tuple_items = node.schema.get("prefixItems")
        start = len(tuple_items) if isinstance(tuple_items, list) else 0
        return _rest(x, node, value, "items", start, is_positive)

    return expand


def _additional_items(is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        items = node.schema.get("items")
        if not isinstance(items, list):
            return [()] if is_positive else []
        return _rest(x, node, value, "additionalItems", len(items), is_positive)

    return expand


def _rest(x: Expander, node: Node, value: Any, keyword: str, start: int, is_positive: bool) -> Alternatives:
    child = x.child(node, value, keyword)
    if is_positive:
        return [(Tail(start, x.conjunction(child)),)]
    return [(Contains(start, x.conjunction(child, False), x.conjunction(child), 1, None, is_seen=False),)]


def _contains(is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        schema = node.schema
        low = count(x, node, "minContains", schema.get("minContains", 1))
        high = count(x, node, "maxContains", schema["maxContains"]) if "maxContains" in schema else None
        child = x.child(node, value, "contains")
        inside, outside = x.conjunction(child), x.conjunction(child, False)
        if is_positive:
            return [(Contains(0, inside, outside, low, high),)]
        result: Alternatives = [(Contains(0, inside, outside, 0, low - 1),)] if low else []
        if high is not None:
            result.append((Contains(0, inside, outside, high + 1, None),))
        return result

    return expand


def _min_items(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Count(count(x, node, "minItems", value), None),)]


def _max_items(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Count(0, count(x, node, "maxItems", value)),)]


def _not_min_items(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    n = count(x, node, "minItems", value)
    return [(Count(0, n - 1),)] if n else []


def _not_max_items(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [(Count(count(x, node, "maxItems", value) + 1, None),)]


def _unique(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    if not isinstance(value, bool):
        raise x.invalid(node, "uniqueItems", "true or false", value)
    return [(Unique(node.pointer),)] if value else [()]


def _not_unique(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    if value is not True:
        return []
    raise x.unsupported(node, "uniqueItems", "put no uniqueItems inside 'not', 'if' and overlapping oneOf")


_ARRAY = ("array",)
POSITIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    "prefixItems": (_ARRAY, _prefix("prefixItems", True)),
    "items": (_ARRAY, _items(True)),
    "additionalItems": (_ARRAY, _additional_items(True)),
    "contains": (_ARRAY, _contains(True)),
    "minItems": (_ARRAY, _min_items),
    "maxItems": (_ARRAY, _max_items),
    "uniqueItems": (_ARRAY, _unique),
}
NEGATIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    "prefixItems": (_ARRAY, _prefix("prefixItems", False)),
    "items": (_ARRAY, _items(False)),
    "additionalItems": (_ARRAY, _additional_items(False)),
    "contains": (_ARRAY, _contains(False)),
    "minItems": (_ARRAY, _not_min_items),
    "maxItems": (_ARRAY, _not_max_items),
    "uniqueItems": (_ARRAY, _not_unique),
}
