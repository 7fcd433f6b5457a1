"""Documents of a JSON schema: schemas with their base addresses, and the targets of references."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from woolly.errors import RequestError

MAX_DEPTH = 128
MAX_OBJECTS = 30_000
_OLD = re.compile(r"draft-0[467]")
_NO_SCHEMAS = ("const", "enum", "default", "examples", "example", "x-documents")
_ANNOTATIONS = ("title", "description", "default", "examples", "$comment")
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, eq=False)
class Node:
    """Schema at a place. A node is interned: two of one place are the same object."""

    index: int
    schema: Any
    base: str
    pointer: str
    scope: tuple[str, ...] = ()  # addresses of the documents that led here, for $dynamicRef


class Documents:
    """All schemas that a schema refers to."""

    def __init__(self, root: Any, others: Mapping[str, Any]) -> None:
        self._nodes: dict[tuple[Hashable, str, tuple[str, ...]], Node] = {}
        self._kept: list[Any] = []  # keeps ids valid
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}
        self._old: dict[str, bool] = {}
        self._root = root
        self._n_objects = 0
        self.is_dynamic = self.has_unevaluated = False
        for address, document in others.items():
            self._add(document, urldefrag(address)[0])
        self._add(root, "")
        self.root = self.node(root, self._bases.get(id(root), ""), "#", ())
        self._moved: dict[str, list[Any]] | None = None

    def node(self, schema: Any, base: str, pointer: str, scope: tuple[str, ...]) -> Node:
        """Return the node of a schema found at a base address."""
        base = self._bases.get(id(schema), base) if isinstance(schema, dict) else base
        if self.is_dynamic and base not in scope:
            scope = (*scope, base)
        key = (_identity(schema), base, scope)
        found = self._nodes.get(key)
        if found is None:
            self._kept.append(schema)
            found = self._nodes[key] = Node(len(self._nodes), schema, base, pointer, scope)
        return found

    def is_old(self, node: Node) -> bool:
        """Return True if the document is of draft 7 or older, in which keywords beside `$ref` have no meaning."""
        return self._old.get(node.base, False)

    def resolve(self, node: Node, reference: str, keyword: str) -> Node:
        """Return the target of a reference of a node."""
        address, fragment = urldefrag(urljoin(node.base, reference))
        target = self._find(address, fragment)
        if target is None and fragment and not reference.startswith("#/"):
            target = self._find(address, unquote(fragment))
        if target is None and reference.startswith("#/"):
            target = self._find_moved(unquote(fragment))
        if target is None:
            raise self._missing(node, reference, address)
        schema, base = target
        scope = node.scope
        if keyword != "$ref" and isinstance(schema, dict):
            name = schema.get("$dynamicAnchor")
            if keyword == "$dynamicRef" and isinstance(name, str) and name == fragment:
                for outer in scope:
                    if (outer, name) in self._dynamic:
                        schema, base = self._dynamic[outer, name], outer
                        break
            if keyword == "$recursiveRef" and schema.get("$recursiveAnchor") is True:
                for outer in scope:
                    if self._resources.get(outer, {}).get("$recursiveAnchor") is True:
                        schema, base = self._resources[outer], outer
                        break
        return self.node(schema, base, reference if reference.startswith("#") else f"{reference}", scope)

    def _missing(self, node: Node, reference: str, address: str) -> RequestError:
        if address != node.base and address not in self._resources:
            return RequestError(
                f"the JSON schema refers to {reference[:80]!r} at {node.pointer}, which is another document; put that"
                " document into 'x-documents' of the root, by its address"
            )
        what = "has several meanings" if self._has_several(reference) else "is not there"
        return RequestError(
            f"the JSON schema refers to {reference[:80]!r} at {node.pointer}, which {what}; put definitions into"
            " '$defs' of the root schema"
        )

    def _find(self, address: str, fragment: str) -> tuple[Any, str] | None:
        if address not in self._resources:
            return None
        schema: Any = self._resources[address]
        base = address
        if not fragment:
            return schema, base
        if not fragment.startswith("/"):
            found = self._anchors.get((address, fragment))
            return None if found is None else (found, base)
        for part in fragment.split("/")[1:]:
            for name in (unquote(part), part):
                name = name.replace("~1", "/").replace("~0", "~")
                if isinstance(schema, dict) and name in schema:
                    schema = schema[name]
                    break
                if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
                    schema = schema[int(name)]
                    break
            else:
                return None
            base = self._bases.get(id(schema), base) if isinstance(schema, dict) else base
        return (schema, base) if isinstance(schema, (dict, bool)) else None

    def _find_moved(self, fragment: str) -> tuple[Any, str] | None:
        """Return a definition that a generator left in a nested schema, if all of its name are equal."""
        found = self._moved_definitions().get(fragment, [])
        return (found[0], self._bases.get(id(self._root), "")) if found and all(x == found[0] for x in found) else None

    def _has_several(self, reference: str) -> bool:
        return len(self._moved_definitions().get(unquote(reference.removeprefix("#")), [])) > 1

    def _moved_definitions(self) -> dict[str, list[Any]]:
        if self._moved is None:
            self._moved = {}
            for schema in _dicts(self._root):
                for keyword in _DEFINITIONS:
                    if isinstance(schema.get(keyword), dict):
                        for name, value in schema[keyword].items():
                            self._moved.setdefault(f"/{keyword}/{name}", []).append(value)
        return self._moved

    def _add(self, document: Any, address: str) -> None:
        self._resources[address] = document
        waiting: list[tuple[Any, str, int]] = [(document, address, 0)]
        while waiting:
            item, base, depth = waiting.pop()
            if depth > MAX_DEPTH:
                raise RequestError(f"the JSON schema is nested too deeply; the maximum is {MAX_DEPTH} levels")
            if isinstance(item, list):
                waiting += [(value, base, depth + 1) for value in item if isinstance(value, (dict, list))]
                continue
            if not isinstance(item, dict):
                continue
            self._n_objects += 1
            if self._n_objects > MAX_OBJECTS:
                raise RequestError(f"the JSON schema has too many subschemas; the maximum is {MAX_OBJECTS} objects")
            base = self._enter(item, base, is_root=item is document)
            for keyword, value in item.items():
                if isinstance(value, (dict, list)) and keyword not in _NO_SCHEMAS:
                    waiting.append((value, base, depth + 1))

    def _enter(self, schema: dict[str, Any], base: str, is_root: bool) -> str:
        """Record the addresses that a schema gives itself."""
        draft = schema.get("$schema")
        outer = base
        is_old = bool(_OLD.search(draft)) if isinstance(draft, str) else self._old.get(base, False)
        identity = schema.get("$id", schema.get("id"))
        if is_old and "$ref" in schema and not is_root:
            identity = None
        if isinstance(identity, str) and re.fullmatch(r"[^{}\s]*", identity):
            if identity.startswith("#"):
                self._anchors[base, identity[1:]] = schema
            else:
                base = urldefrag(urljoin(base, identity))[0]
                self._resources.setdefault(base, schema)
                self._bases[id(schema)] = base
        if is_root or base != outer:
            self._old[base] = is_old
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors[base, name] = schema
                if keyword == "$dynamicAnchor":
                    self._dynamic[base, name] = schema
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            self.has_unevaluated = True
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            self.is_dynamic = True
        return base


def _identity(schema: Any) -> Hashable:
    """Return a hashable key that identifies a schema. Equal schemas of numbers and short texts alone have one node."""
    if isinstance(schema, bool):
        return schema
    if isinstance(schema, dict) and "$ref" not in schema and "$id" not in schema and "$dynamicRef" not in schema:
        flat = tuple((name, value) for name, value in schema.items() if name not in _ANNOTATIONS)
        if all(isinstance(value, str) or type(value) in (int, float) for _, value in flat):
            return flat
    return id(schema)


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Return all objects of a JSON value, including the value itself."""
    found, waiting = [], [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            found.append(item)
        if isinstance(item, (dict, list)):
            waiting.extend(item.values() if isinstance(item, dict) else item)
    return found
