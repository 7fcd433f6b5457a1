"""Expansion of schemas: which facts hold for a value of one type that satisfies a schema, or that does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.grammar.schema.budget import tick
from woolly.grammar.schema.facts import Alternative, Alternatives, Conjunction, without_annotations
from woolly.grammar.schema.shapes import contradicts
from woolly.grammar.schema.unevaluated import close_items, close_properties

if TYPE_CHECKING:
    from woolly.grammar.schema.documents import Documents, Node

TYPES = ("null", "boolean", "number", "string", "array", "object")
MAX_ALTERNATIVES = 400
MAX_COMPARED = 60  # alternatives that are compared with each other
MAX_DEPTH = 100
MAX_NODES = 20_000

Keyword = Callable[["Expander", "Node", Any, str], Alternatives]
Entry = tuple[tuple[str, ...] | None, Keyword]  # types to which a keyword applies (None: all), and the keyword

# Keywords of any draft or common dialect that constrain a value, but that grammars cannot enforce.
UNSUPPORTED = frozenset(
    {
        "extends", "disallow", "divisibleBy", "formatMinimum", "formatMaximum", "formatExclusiveMinimum",
        "formatExclusiveMaximum", "x-guidance",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Either:
    """Schema that no document contains: at least one of some conditions."""

    conjunctions: tuple[Conjunction, ...]


class Expander:
    """Reduces the keywords of schemas to facts. Results are kept."""

    def __init__(self, documents: Documents, positive: Mapping[str, Entry], negative: Mapping[str, Entry]) -> None:
        """`positive` and `negative` are the tables of keywords, and of keywords inside `not`."""
        self.documents = documents
        self._tables = {True: positive, False: negative}
        self._nodes: dict[int, Node] = {}
        self._synthetic: dict[str, Node] = {}
        self._eithers: dict[Either, Node] = {}
        self._results: dict[tuple[int, bool, str], Alternatives] = {}
        self._conjunctions: dict[tuple[Conjunction, str], Alternatives] = {}
        self._active: list[tuple[int, bool, str]] = []
        self.false = self.synthetic(False)

    def child(self, node: Node, schema: Any, where: str) -> Node:
        """Return the node of a schema inside another one."""
        found = self.documents.node(schema, node.base, f"{node.pointer}/{where}", node.scope)
        return self.keep(found)

    def synthetic(self, schema: Any) -> Node:
        """Return the node of a schema that no document contains."""
        text = json.dumps(schema, default=str)
        if text not in self._synthetic:
            self._synthetic[text] = self.keep(self.documents.node(schema, "", "#", ()))
        return self._synthetic[text]

    def either(self, conjunctions: Iterable[Conjunction]) -> Conjunction:
        """Return the condition to meet at least one of some conditions."""
        options = Either(tuple(conjunctions))
        if frozenset() in options.conjunctions:
            return frozenset()
        if options not in self._eithers:
            self._eithers[options] = self.keep(self.documents.node(options, "", "#", ()))
        return frozenset([(self._eithers[options].index, True)])

    def conjunction(self, node: Node, is_positive: bool = True) -> Conjunction:
        """Return the condition to satisfy a schema, or not to."""
        if node.schema is is_positive or (is_positive and node.schema == {}):
            return frozenset()
        return frozenset([(node.index, is_positive)])

    def refer(self, node: Node, reference: Any, keyword: str) -> Node:
        """Return the target of a reference."""
        if not isinstance(reference, str):
            raise self.invalid(node, keyword, "a string", reference)
        return self.keep(self.documents.resolve(node, reference, keyword))

    def alternatives(self, conjunction: Conjunction, kind: str) -> Alternatives:
        """Return the alternatives of a value of a type that meets a condition."""
        key = (conjunction, kind)
        if key not in self._conjunctions:
            parts = [self.expand(self._nodes[index], sign, kind) for index, sign in sorted(conjunction)]
            self._conjunctions[key] = product(parts, kind)
        return self._conjunctions[key]

    def expand(self, node: Node, is_positive: bool, kind: str) -> Alternatives:
        """Return the alternatives of a value of a type that satisfies a schema, or that does not."""
        schema = node.schema
        if isinstance(schema, Either) and is_positive:
            return limit([o for part in schema.conjunctions for o in self.alternatives(part, kind)], node)
        if isinstance(schema, bool):
            return [()] if schema == is_positive else []
        if not isinstance(schema, dict):
            raise RequestError(f"a JSON schema must be an object, not {json.dumps(schema)[:40]} at {node.pointer}")
        key = (node.index, is_positive, kind)
        if key not in self._results:
            if key in self._active:
                raise RequestError(
                    f"the JSON schema cannot be used: it refers to itself at {node.pointer} without a value in between"
                )
            if len(self._active) > MAX_DEPTH:
                raise RequestError(f"the JSON schema combines more than {MAX_DEPTH} levels of schemas for one value")
            self._active.append(key)
            self._results[key] = self._expand(node, schema, is_positive, kind)
            self._active.pop()
        return self._results[key]

    def merges(self, kind: str) -> bool:
        """Return True if an alternative may replace others that say more. Those may evaluate more members."""
        return not (self.documents.has_unevaluated and kind in ("array", "object"))

    def invalid(self, node: Node, keyword: str, expected: str, value: Any) -> RequestError:
        """Return the error of a keyword with a wrong value."""
        text = json.dumps(value, default=str)[:40]
        return RequestError(f"the JSON schema has {keyword} {text} at {node.pointer}; expected {expected}")

    def unsupported(self, node: Node, keyword: str, hint: str) -> RequestError:
        """Return the error of a keyword that cannot be enforced."""
        return RequestError(
            f"the JSON schema uses {keyword!r} at {node.pointer}, which grammars cannot enforce here; {hint}"
        )

    def _expand(self, node: Node, schema: dict[str, Any], is_positive: bool, kind: str) -> Alternatives:
        table = self._tables[is_positive]
        keywords: Iterable[str] = schema
        if "$ref" in schema and self.documents.is_old(node):
            keywords = ["$ref"]
        found = []
        for keyword in keywords:
            if keyword in UNSUPPORTED:
                raise self.unsupported(node, keyword, "remove it or use supported keywords")
            entry = table.get(keyword)
            if entry is not None and (entry[0] is None or kind in entry[0]):
                found.append(entry[1](self, node, schema[keyword], kind))
        if not is_positive:
            if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
                raise self.unsupported(node, "not", "put no unevaluatedProperties and unevaluatedItems inside 'not'")
            return limit([without_annotations(option) for options in found for option in options], node)
        result = limit(product(found, kind), node, merge=self.merges(kind))
        if kind == "object" and "unevaluatedProperties" in schema:
            result = [close_properties(self, node, option) for option in result]
        if kind == "array" and "unevaluatedItems" in schema:
            result = [close_items(self, node, option) for option in result]
        return result

    def keep(self, node: Node) -> Node:
        """Record a node, and return it."""
        self._nodes[node.index] = node
        if len(self._nodes) > MAX_NODES:
            raise RequestError(f"the JSON schema has too many subschemas; the maximum is {MAX_NODES}")
        return node

    def node(self, index: int) -> Node:
        """Return a node by its index."""
        return self._nodes[index]


def product(parts: list[Alternatives], kind: str) -> Alternatives:
    """Return the alternatives that combine one alternative of each part."""
    result: Alternatives = [()]
    for part in parts:
        if part == [()]:
            continue
        combined: dict[Alternative, None] = {}
        for first in result:
            for second in part:
                tick()
                both = tuple(dict.fromkeys((*first, *second)))
                if len(parts) == 1 or not contradicts(both, kind):
                    combined[both] = None
        if len(combined) > MAX_ALTERNATIVES:
            combined = dict.fromkeys(_absorb(list(combined)))
        if len(combined) > MAX_ALTERNATIVES:
            raise RequestError(
                f"the JSON schema combines more than {MAX_ALTERNATIVES} alternatives for one value; use fewer anyOf,"
                " oneOf, not and if together"
            )
        result = list(combined)
    return result


def limit(alternatives: Alternatives, node: Node, *, merge: bool = True) -> Alternatives:
    """Return alternatives without those that another one contains, if `merge` is set."""
    unique = list(dict.fromkeys(alternatives))
    if merge and 1 < len(unique) <= MAX_COMPARED:
        unique = _absorb(unique)
    if len(unique) > MAX_ALTERNATIVES * 3:
        raise RequestError(
            f"the JSON schema has {len(unique)} alternatives for one value at {node.pointer}; the maximum is"
            f" {MAX_ALTERNATIVES * 3}"
        )
    return unique


def _absorb(alternatives: Alternatives) -> Alternatives:
    """Remove alternatives with all facts of a shorter one."""
    if () in alternatives:
        return [()]
    sets = [frozenset(option) for option in alternatives]
    by_length = sorted(range(len(sets)), key=lambda i: len(sets[i]))
    kept: list[int] = []
    for i in by_length:
        if not any(sets[j] <= sets[i] for j in kept if len(sets[j]) < len(sets[i])):
            kept.append(i)
    return [alternatives[i] for i in sorted(kept)]
