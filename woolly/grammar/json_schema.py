"""Preparation of JSON schemas for llguidance. Rejects keywords that llguidance would ignore, misread or fail on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from woolly.errors import RequestError
from woolly.grammar.control_characters import control_character_in, declares_names, has_free_names
from woolly.grammar.schema_conjunction import Conjunctions

MAX_SOURCE = 1 << 20
# While compiling, a chain of references needs up to 8 KiB of the 256 MiB stack per schema.
MAX_SCHEMAS = 20_000
# Compile time grows with the square of an object's properties (0.2 µs per pair) and patterns (up to 10 ms per pair).
MAX_PROPERTY_PAIRS = 10_000_000
MAX_PATTERN_PAIRS = 500
MAX_PATTERNS = 2_000
# The time of a mask grows with the length of the current literal: 30 ms for 10 KB, 1.5 s for 500 KB.
MAX_LITERAL = 10_000

# Keywords of any draft or common dialect that constrain a value, but that no grammar can express.
_UNSUPPORTED = {
    "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "contains", "minContains",
    "maxContains", "propertyNames", "uniqueItems", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
    "$recursiveRef", "extends", "disallow", "divisibleBy", "formatMinimum", "formatMaximum",
    "formatExclusiveMinimum", "formatExclusiveMaximum", "x-guidance",
}  # fmt: skip
_ONE = ("items", "additionalItems", "additionalProperties")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties")
_DEFINITIONS = ("$defs", "definitions")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")

# Without \uXXXX, each string has only one encoding. With it, "\u0061" would be a name other than "a", and a declared
# property would bypass its schema. A schema that names a control character needs it.
_ESCAPES = 'nrbtf\\"'
_WHITESPACE: dict[str, dict[str, Any]] = {
    # At most one space, after a comma or a colon. Small models that may begin a new line often never end it.
    "compact": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    # One space, or at most two newlines and an indentation.
    "indented": {"whitespace_pattern": r"\x20|\r?\n{1,2}[\x20\t]{0,40}"},
}


def prepare_schema(source: str) -> str:
    """Return the schema as JSON for llguidance. Raise RequestError if it cannot be enforced exactly."""
    if len(source) > MAX_SOURCE:
        raise RequestError(f"the JSON schema has {len(source)} characters; the maximum is {MAX_SOURCE}")
    try:
        schema = json.loads(source, parse_constant=_no_constant)
    except RecursionError:
        raise RequestError("the JSON schema is nested too deeply; the maximum is 128 levels") from None
    except ValueError as error:
        raise RequestError(f"the JSON schema is not valid JSON: {error}") from None
    return json.dumps(prepare_schema_value(schema))


def prepare_schema_value(schema: Any) -> dict[str, Any]:
    """Prepare a parsed schema for llguidance, in place."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise RequestError(f"a JSON schema must be an object, not {json.dumps(schema)[:40]}")
    whitespace = schema.pop("x-whitespace", "compact")
    if not isinstance(whitespace, str) or whitespace not in _WHITESPACE:
        raise RequestError(
            f"the JSON schema has x-whitespace {json.dumps(whitespace)[:40]}; expected compact or indented"
        )
    walk = _Walk(schema)
    walk.run()
    schema["x-guidance"] = _WHITESPACE[whitespace] | {"json_allowed_escapes": _ESCAPES + "u" * walk.needs_unicode}
    return schema


class _Walk:
    """Converts every schema reachable from the root to plain draft 2020-12, or rejects it.

    llguidance ignores keywords that are unknown in a schema's draft. Without `$schema` it assumes the latest draft,
    accepts the keywords of all drafts, and rejects those that it does not support.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._seen: dict[int, dict[str, Any]] = {}
        self._conjunctions = Conjunctions(partial(_target, root))  # no bound method: a cycle would keep the schema
        self._waiting: list[tuple[Any, str]] = [(root, "#")]
        self.needs_unicode = False  # \\u escapes, since the schema names a control character
        self._property_pairs = self._pattern_pairs = self._patterns = 0
        draft = root.get("$schema")
        self._old_ids = isinstance(draft, str) and "draft-04" in draft
        if isinstance(draft, str) and "json-schema.org/draft-03" in draft:
            raise RequestError("JSON schema draft 3 is not supported; use draft 4, 6, 7, 2019-09 or 2020-12")

    def run(self) -> None:
        control: str | None = None
        while self._waiting:
            schema, pointer = self._waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self._seen:
                continue
            self._seen[id(schema)] = schema
            if len(self._seen) > MAX_SCHEMAS:
                raise RequestError(f"the JSON schema has too many subschemas; the maximum is {MAX_SCHEMAS}")
            self._modernize(schema)
            self._hoist(schema, pointer)
            self._check(schema, pointer)
            self._measure(schema, pointer)
            self._conjunctions.check(schema, pointer)
            self._waiting.extend(reversed(list(self._inner(schema, pointer))))
            if control is None and (keyword := control_character_in(schema)) is not None:
                control = f"{keyword!r} at {pointer}"
        schemas = list(self._seen.values())
        self._conjunctions.close(schemas)
        if control is not None:
            self.needs_unicode = True
            if self._conjunctions.join(has_free_names, declares_names, schemas):
                raise RequestError(
                    f"the JSON schema has a control character in {control}, and an object with both declared and free"
                    " property names, which cannot be combined; set additionalProperties of that object to false"
                )

    def _modernize(self, schema: dict[str, Any]) -> None:
        for annotation in ("$schema", "$dynamicAnchor", "$recursiveAnchor"):
            schema.pop(annotation, None)
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        if self._old_ids and isinstance(schema.get("id"), str):
            schema.setdefault("$id", schema.pop("id"))
        if isinstance(reference := schema.get("$ref"), str):
            schema["$ref"] = quote(reference, safe="#%/:?&=~@!$'()*+,;")  # generators do not escape < and |
        identity = schema.get("$id")
        if isinstance(identity, str) and identity.startswith("#"):
            schema["$anchor"] = schema.pop("$id")[1:]

    def _hoist(self, schema: dict[str, Any], pointer: str) -> None:
        """Move a definition to the root, where its reference points. Some generators leave it in a nested schema."""
        reference = schema.get("$ref")
        if (
            not isinstance(reference, str)
            or not reference.startswith("#/")
            or _target(self._root, reference) is not None
        ):
            return
        keyword, _, name = unquote(reference[2:]).partition("/")
        inner = [value for value in _dicts(self._root) if value is not self._root]
        if any(isinstance(value.get("$id"), str) for value in inner):
            return  # llguidance resolves references to embedded documents
        places = [value[keyword] for value in inner if isinstance(value.get(keyword), dict)]
        found = {json.dumps(place[name]): place[name] for place in places if name in place}
        definitions = self._root.setdefault(keyword, {}) if keyword in _DEFINITIONS and len(found) == 1 else None
        if not isinstance(definitions, dict):
            what = "has several meanings" if len(found) > 1 else "is not there"
            raise RequestError(
                f"the JSON schema refers to {reference!r} at {pointer}, which {what}; put definitions into '$defs' of"
                " the root schema"
            )
        (definitions[name],) = found.values()

    def _check(self, schema: dict[str, Any], pointer: str) -> None:
        for keyword in schema:
            if keyword in _UNSUPPORTED:
                raise RequestError(
                    f"the JSON schema uses {keyword!r} at {pointer}, which grammars cannot enforce; remove it or use"
                    " supported keywords"
                )
        least, required = schema.get("minProperties", 0), schema.get("required", ())
        names = len(required) if isinstance(required, list) else 0
        if isinstance(least, int) and least > max(1, names):
            raise RequestError(
                f"the JSON schema has minProperties {least} at {pointer}, but free property names may repeat; list the"
                " required properties in 'required'"
            )
        for keyword in _NUMBERS:
            if keyword in schema and (number := _inexact(schema[keyword])) is not None:
                raise RequestError(
                    f"the JSON schema has {str(number)[:40]} in {keyword!r} at {pointer}, which is not exact as a"
                    " 64-bit float; use a number that is"
                )

        for keyword, literals in (("const", [schema.get("const")]), ("enum", schema.get("enum"))):
            for literal in literals if isinstance(literals, list) else ():
                _check_literal(len(json.dumps(literal)), f"a value of {keyword!r} at {pointer}")
        for keyword in _NAMED:
            for name in schema[keyword] if isinstance(schema.get(keyword), dict) else ():
                _check_literal(len(name), f"a name of {keyword!r} at {pointer}")

    def _measure(self, schema: dict[str, Any], pointer: str) -> None:
        names, patterns = schema.get("properties"), schema.get("patternProperties")
        n_names = len(names) if isinstance(names, dict) else 0
        n_patterns = len(patterns) if isinstance(patterns, dict) else 0
        self._property_pairs += n_names * n_names
        self._pattern_pairs += n_patterns * (n_patterns - 1) // 2
        self._patterns += n_patterns + ("pattern" in schema)
        if self._property_pairs > MAX_PROPERTY_PAIRS:
            raise RequestError(f"the JSON schema has too many properties: {n_names} in one object at {pointer}")
        if self._pattern_pairs > MAX_PATTERN_PAIRS:
            raise RequestError(
                f"the JSON schema has too many patternProperties: {n_patterns} in one object at {pointer}"
            )
        if self._patterns > MAX_PATTERNS:
            raise RequestError(f"the JSON schema has too many patterns; the maximum is {MAX_PATTERNS}")

    def _inner(self, schema: dict[str, Any], pointer: str) -> Iterator[tuple[Any, str]]:
        for keyword, value in schema.items():
            if keyword in _ONE and isinstance(value, dict):
                yield value, f"{pointer}/{keyword}"
            elif keyword in (*_MANY, "items") and isinstance(value, list):
                yield from ((item, f"{pointer}/{keyword}/{i}") for i, item in enumerate(value))
            elif keyword in _NAMED and isinstance(value, dict):
                yield from ((item, f"{pointer}/{keyword}/{name}") for name, item in value.items())
            elif keyword == "$ref" and isinstance(value, str):
                yield from self._referenced(value)

    def _referenced(self, reference: str) -> Iterator[tuple[Any, str]]:
        """Yield the target of a reference, or all definitions if only llguidance can resolve the reference."""
        target = _target(self._root, reference)
        if isinstance(target, (dict, bool)):
            yield target, reference
            return
        for keyword in _DEFINITIONS:
            definitions = self._root.get(keyword)
            if isinstance(definitions, dict):
                yield from ((value, f"#/{keyword}/{name}") for name, value in definitions.items())


def _target(root: dict[str, Any], reference: str) -> Any:
    """Return the target of a reference within the root, or None if only llguidance can resolve it."""
    target: Any = root if reference in ("#", "#/") or reference.startswith("#/") else None
    for part in reference.split("/")[1:] if target is not None and reference not in ("#", "#/") else ():
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal():
            target = target[int(name)] if int(name) < len(target) else None
        else:
            target = None
    return target


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value, including the value itself."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
        if isinstance(item, (dict, list)):
            waiting.extend(item.values() if isinstance(item, dict) else item)


def _check_literal(length: int, what: str) -> None:
    if length > MAX_LITERAL:
        raise RequestError(f"the JSON schema has {length} characters in {what}; the maximum is {MAX_LITERAL}")


def _inexact(value: Any) -> int | float | None:
    """Return the first number in `value` that a float cannot represent exactly or that is not finite."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (dict, list)):
            waiting.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, float):
            if not math.isfinite(item):
                return item
        elif isinstance(item, int) and (abs(item) > 1 << 1000 or int(float(item)) != item):
            return item
    return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
