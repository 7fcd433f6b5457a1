"""unevaluatedProperties and unevaluatedItems, for one alternative whose evaluated members are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.grammar.schema.facts import Alternative, Contains, Item, Matching, Openness, Others, Property, Tail

if TYPE_CHECKING:
    from woolly.grammar.schema.documents import Node
    from woolly.grammar.schema.expand import Expander


def close_properties(expander: Expander, node: Node, alternative: Alternative) -> Alternative:
    """Add the condition on properties that no other keyword evaluates."""
    child = expander.child(node, node.schema["unevaluatedProperties"], "unevaluatedProperties")
    if any(isinstance(fact, Others) and fact.is_seen for fact in alternative):
        return alternative
    names = frozenset(fact.name for fact in alternative if isinstance(fact, Property) and fact.is_seen)
    languages = tuple(fact.language for fact in alternative if isinstance(fact, Matching) and fact.is_seen)
    return (*alternative, Others(names, languages, expander.conjunction(child)), Openness(True))


def close_items(expander: Expander, node: Node, alternative: Alternative) -> Alternative:
    """Add the condition on items that no other keyword evaluates."""
    schema = node.schema["unevaluatedItems"]
    child = expander.child(node, schema, "unevaluatedItems")
    if any(isinstance(fact, Tail) and fact.is_seen for fact in alternative):
        return alternative
    start = max((fact.position + 1 for fact in alternative if isinstance(fact, Item) and fact.is_seen), default=0)
    contained = [fact for fact in alternative if isinstance(fact, Contains) and fact.is_seen]
    if not contained:
        return (*alternative, Tail(start, expander.conjunction(child)))
    if schema is True:
        return (*alternative, Tail(start, frozenset()))
    # Items that `contains` matches are evaluated.
    either = expander.either([expander.conjunction(child), *(fact.child for fact in contained)])
    return (*alternative, Tail(start, either))
