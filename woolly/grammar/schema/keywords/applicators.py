"""Keywords that apply other schemas to the same value: references, allOf, anyOf, oneOf, not, if."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from woolly.grammar.schema.constants import constants, not_constants
from woolly.grammar.schema.documents import Node
from woolly.grammar.schema.emptiness import excludes
from woolly.grammar.schema.expand import Expander, Keyword, limit, product
from woolly.grammar.schema.facts import Alternatives

MAX_SUBSETS = 4  # options of an anyOf whose subsets are distinguished, for unevaluated... keywords


def _options(x: Expander, node: Node, keyword: str) -> list[Node]:
    value = node.schema[keyword]
    if not isinstance(value, list) or not value:
        raise x.invalid(node, keyword, "a list of schemas", value)
    return [x.child(node, option, f"{keyword}/{i}") for i, option in enumerate(value)]


def _reference(keyword: str, is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        return x.expand(x.refer(node, value, keyword), is_positive, kind)

    return expand


def _all_of(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return product([x.expand(option, True, kind) for option in _options(x, node, "allOf")], kind)


def _not_all_of(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return [found for option in _options(x, node, "allOf") for found in x.expand(option, False, kind)]


def _any_of(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    options = [found for option in _options(x, node, "anyOf") if (found := x.expand(option, True, kind))]
    union = [alternative for option in options for alternative in option]
    if kind in ("array", "object") and x.documents.has_unevaluated:
        if len(options) > MAX_SUBSETS:
            raise x.unsupported(node, "anyOf", f"use at most {MAX_SUBSETS} options beside unevaluated... keywords")
        # Each option that holds evaluates its own members.
        for n in range(2, len(options) + 1):
            for subset in combinations(options, n):
                union += product(list(subset), kind)
        return list(dict.fromkeys(union))
    return limit(union, node, merge=x.merges(kind))


def _not_any_of(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return product([x.expand(option, False, kind) for option in _options(x, node, "anyOf")], kind)


def _one_of(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    options = [option for option in _options(x, node, "oneOf") if x.expand(option, True, kind)]
    result: Alternatives = []
    for i, option in enumerate(options):
        parts = [x.expand(option, True, kind)]
        for j, other in enumerate(options):
            if i != j and not excludes(x, option, other, kind):
                parts.append(x.expand(other, False, kind))
        result += product(parts, kind)
    return limit(result, node, merge=x.merges(kind))


def _not_one_of(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    options = _options(x, node, "oneOf")
    result = product([x.expand(option, False, kind) for option in options], kind)
    for first, second in combinations(options, 2):
        if not excludes(x, first, second, kind):
            result = result + product([x.expand(first, True, kind), x.expand(second, True, kind)], kind)
    return result


def _not(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return x.expand(x.child(node, value, "not"), False, kind)


def _not_not(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return x.expand(x.child(node, value, "not"), True, kind)


def _if(is_positive: bool) -> Keyword:
    def expand(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
        schema = node.schema
        if "then" not in schema and "else" not in schema and not (is_positive and x.documents.has_unevaluated):
            return [()] if is_positive else []
        test = x.child(node, value, "if")
        then = x.expand(x.child(node, schema.get("then", True), "then"), is_positive, kind)
        other = x.expand(x.child(node, schema.get("else", True), "else"), is_positive, kind)
        result: Alternatives = []
        if then:
            result += product([x.expand(test, True, kind), then], kind)
        if other:
            result += product([x.expand(test, False, kind), other], kind)
        return result

    return expand


def _enum(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    if not isinstance(value, list):
        raise x.invalid(node, "enum", "a list", value)
    return constants(x, node, value, kind)


def _const(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return constants(x, node, [value], kind)


def _not_enum(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    if not isinstance(value, list):
        raise x.invalid(node, "enum", "a list", value)
    return not_constants(x, node, value, kind)


def _not_const(x: Expander, node: Node, value: Any, kind: str) -> Alternatives:
    return not_constants(x, node, [value], kind)


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
POSITIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    **{name: (None, _reference(name, True)) for name in _REFERENCES},
    "allOf": (None, _all_of),
    "anyOf": (None, _any_of),
    "oneOf": (None, _one_of),
    "not": (None, _not),
    "if": (None, _if(True)),
    "enum": (None, _enum),
    "const": (None, _const),
}
NEGATIVE: dict[str, tuple[tuple[str, ...] | None, Keyword]] = {
    **{name: (None, _reference(name, False)) for name in _REFERENCES},
    "allOf": (None, _not_all_of),
    "anyOf": (None, _not_any_of),
    "oneOf": (None, _not_one_of),
    "not": (None, _not_not),
    "if": (None, _if(False)),
    "enum": (None, _not_enum),
    "const": (None, _not_const),
}
