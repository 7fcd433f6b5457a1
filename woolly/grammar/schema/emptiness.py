"""Proofs that no value meets a condition. They may miss a case, but are never wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.grammar.schema.budget import tick
from woolly.grammar.schema.facts import Alternative, Conjunction, Contains, Presence
from woolly.grammar.schema.shapes import Children, array_shape, contradicts, strings

if TYPE_CHECKING:
    from woolly.grammar.schema.documents import Node
    from woolly.grammar.schema.expand import Expander

MAX_DEPTH = 3
MAX_PAIRS = 2_000
_TYPES = ("null", "boolean", "number", "string", "array", "object")


def excludes(x: Expander, first: Node, second: Node, kind: str) -> bool:
    """Return True if no value of a type satisfies two schemas."""
    left, right = x.expand(first, True, kind), x.expand(second, True, kind)
    if len(left) * len(right) > MAX_PAIRS:
        return False
    return all(_is_void(x, tuple(dict.fromkeys((*a, *b))), kind, MAX_DEPTH) for a in left for b in right)


def is_void(x: Expander, conjunction: Conjunction, depth: int) -> bool:
    """Return True if no value meets a condition."""
    return all(_is_void(x, option, kind, depth) for kind in _TYPES for option in x.alternatives(conjunction, kind))


def _is_void(x: Expander, facts: Alternative, kind: str, depth: int) -> bool:
    tick()
    if kind == "null":
        return False
    if contradicts(facts, kind):
        return True
    if kind == "string":
        return strings(facts) is None
    if depth == 0 or kind not in ("object", "array"):
        return False
    if kind == "object":
        names = [fact.name for fact in facts if isinstance(fact, Presence) and fact.is_there]
        children = Children(facts)
        return any(is_void(x, child, depth - 1) for name in names if (child := children.of(name)))
    shape = array_shape(facts)
    if shape is None:
        return True
    items = [
        shape.prefix[i] if i < len(shape.prefix) else shape.tail for i in range(min(shape.low, len(shape.prefix) + 1))
    ]
    if any(is_void(x, child, depth - 1) for child in items if child):
        return True
    return not shape.prefix and any(
        fact.low and is_void(x, shape.tail | fact.child, depth - 1) for fact in facts if isinstance(fact, Contains)
    )
