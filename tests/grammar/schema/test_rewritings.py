"""Each rewriting of a keyword accepts exactly the values that an independent validator accepts."""

from __future__ import annotations

import itertools
import json

import jsonschema
import pytest
from jsonschema.validators import validator_for

from tests.cases.grammars import TOKEN_OF_BYTE, byte_tokenizer
from woolly.grammar import Grammar, GrammarCompiler

COMPILER = GrammarCompiler(byte_tokenizer())
OPEN = {"type": "object", "additionalProperties": True}
NAMES = ("a", "b", "cc", "x-1")
SCALARS = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    -1,
    7,
    1.5,
    -0.25,
    100,
    "",
    "a",
    "ab",
    "abc",
    "x",
    "1",
    "Ab1",
    "é",
    'q"',
    "a\n",
]
ARRAYS = [[], [1], ["a"], [1, 1], [1, 2], [1, "a"], ["a", "b"], ["a", "a"], [1, 2, 3], [3, 2, 1], [True, "a", 2], [[]]]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for n in range(4)
    for names in itertools.combinations(NAMES, n)
    for values in ([1] * n, ["a"] * n, [1, "a", None][:n], ["x", 2, "a"][:n])
]
POOL = [*SCALARS, *ARRAYS, *OBJECTS]

SCHEMAS = {
    "then without if": {"then": {"const": 0}},
    "else without if": {"else": {"const": 0}},
    "if without both": {"if": {"const": 0}},
    "whole number as a float": {"type": "array", "minItems": 1.0, "maxItems": 2.0},
    "length as a float": {"type": "string", "maxLength": 2.0},
    "not const": {"not": {"const": "ab"}},
    "not const number": {"not": {"const": 1}},
    "not const array": {"not": {"const": [1, "a"]}},
    "not const object": {"not": {"const": {"a": 1}}},
    "not enum": {"not": {"enum": ["a", 1, None, True]}},
    "not pattern": {"type": "string", "not": {"pattern": "^a"}},
    "not length": {"type": "string", "not": {"minLength": 2}},
    "not type": {"not": {"type": ["object", "integer"]}},
    "not not": {"not": {"not": {"type": "string"}}},
    "not required": {**OPEN, "not": {"required": ["a", "b"]}},
    "not properties": {**OPEN, "not": {"properties": {"a": {"type": "integer"}}}},
    "not property names": {**OPEN, "not": {"propertyNames": {"maxLength": 1}}},
    "not additional": {**OPEN, "not": {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}},
    "not items": {"type": "array", "not": {"items": {"type": "integer"}}},
    "not contains": {"type": "array", "not": {"contains": {"const": 1}}},
    "not bounds": {"type": "number", "not": {"minimum": 1, "maximum": 3}},
    "dependentRequired": {**OPEN, "dependentRequired": {"a": ["b", "cc"]}},
    "dependentSchemas": {**OPEN, "dependentSchemas": {"a": {"required": ["b"], "maxProperties": 2}}},
    "dependencies": {
        **OPEN,
        "$schema": "http://json-schema.org/draft-07/schema#",
        "dependencies": {"a": ["b"], "cc": {"minProperties": 2}},
    },
    "if const then": {
        **OPEN,
        "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"required": ["b"]},
        "else": {"required": ["cc"]},
    },
    "if type": {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}},
    "propertyNames pattern": {"type": "object", "propertyNames": {"pattern": "^x-"}},
    "propertyNames enum": {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    "propertyNames length": {"type": "object", "propertyNames": {"maxLength": 1}},
    "contains": {"type": "array", "contains": {"type": "string"}},
    "contains with counts": {"type": "array", "contains": {"const": 1}, "minContains": 1, "maxContains": 1},
    "contains beside items": {"type": "array", "prefixItems": [{"type": "integer"}], "contains": {"const": "a"}},
    "contains none": {"type": "array", "contains": {"const": 1}, "minContains": 0, "maxContains": 0},
    "unique enum": {"type": "array", "items": {"enum": [1, 2, 3, "a", "b"]}, "uniqueItems": True, "minItems": 1},
    "unique single": {"type": "array", "uniqueItems": True, "maxItems": 1},
    "unique tuple": {
        "type": "array",
        "prefixItems": [{"enum": [1, 2]}],
        "items": {"enum": [1, 2, 3]},
        "uniqueItems": True,
    },
    "oneOf ranges": {"oneOf": [{"type": "number", "maximum": 2}, {"type": "number", "minimum": 1}]},
    "oneOf integer or number": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]},
    "oneOf lengths": {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}]},
    "oneOf patterns": {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]},
    "oneOf required": {**OPEN, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "anyOf with siblings": {"type": ["integer", "string"], "anyOf": [{"minimum": 2}, {"type": "string"}]},
    "patternProperties overlap": {
        "type": "object",
        "patternProperties": {"^[ab]": {"type": "integer"}, "^[bc]": {"maximum": 1}},
    },
    "counts of optional names": {
        "type": "object",
        "properties": {"a": {}, "b": {}, "cc": {}},
        "additionalProperties": False,
        "minProperties": 2,
        "maxProperties": 2,
    },
    "optional before required": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"pattern": "^[^x]*$"}, "cc": {"enum": [1, "a"]}, "x-1": {}},
        "required": ["cc"],
        "additionalProperties": False,
    },
    "at most": {"type": "object", "maxProperties": 2},
    "look-ahead": {"type": "string", "pattern": "^(?=.*[0-9])(?=.*[A-Z]).{2,}$"},
    "negative look-ahead": {"type": "string", "pattern": "^(?!a)[a-z]*$"},
    "digits are ASCII": {"type": "string", "pattern": r"^\d+$"},
    "exclusive bounds": {"type": "number", "exclusiveMinimum": -0.25, "exclusiveMaximum": 1.5},
    "unevaluated over allOf": {
        "type": "object",
        "allOf": [{"properties": {"a": {"type": "integer"}}}],
        "properties": {"b": {}},
        "unevaluatedProperties": False,
    },
    "unevaluated over anyOf": {
        "type": "object",
        "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}],
        "unevaluatedProperties": False,
    },
    "unevaluatedItems": {"prefixItems": [{"type": "integer"}], "anyOf": [{"prefixItems": [{}, {"const": 2}]}, {}],
                         "unevaluatedItems": False, "type": "array"},
}  # fmt: skip


def takes(grammar: Grammar, value: object) -> bool:
    for ordered in orders(value):
        matcher = grammar.start()._matcher
        tokens = [TOKEN_OF_BYTE[byte] for byte in json.dumps(ordered, ensure_ascii=False).encode()]
        if matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting():
            return True
    return False


def orders(value: object):
    if not isinstance(value, dict):
        return [value]
    return [dict(pairs) for pairs in itertools.permutations(value.items())]


@pytest.mark.parametrize("name", SCHEMAS)
def test_grammar_accepts_exactly_the_valid_values(name):
    grammar = COMPILER.compile("json_schema", json.dumps(SCHEMAS[name]))
    validator = validator_for(SCHEMAS[name], jsonschema.Draft202012Validator)(SCHEMAS[name])
    wrong = [value for value in POOL if takes(grammar, value) != validator.is_valid(value)]
    assert not wrong


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "maximum": (1 << 63) - 1}, [(1 << 63) - 1, -(1 << 70)], [1 << 63]),
        ({"type": "integer", "minimum": -(1 << 63), "maximum": 5}, [-(1 << 63), 5], [-(1 << 63) - 1, 6]),
        ({"const": 9007199254740993}, [9007199254740993], [9007199254740992]),
        ({"enum": [[{"a": 12345678901234567890}]]}, [[{"a": 12345678901234567890}]], [[{"a": 12345678901234567891}]]),
        ({"type": "string", "format": "password"}, ["", "x"], [1]),
        ({"type": "string", "format": "date"}, ["2024-02-29", "2023-12-31"], ["2023-02-29", "2100-02-29"]),
        ({"type": "string", "format": "time"}, ["23:59:60Z", "12:00:00+01:00"], ["12:00:60Z", "24:00:00Z"]),
        ({"type": "string", "format": "ipv6"}, ["::1", "::ffff:192.168.0.1"], ["1::2::3", ":1"]),
        ({"type": "string", "format": "hostname"}, ["a.example"], ["-a.example", "xn--X", "a" * 64]),
        ({"type": "string", "format": "json-pointer"}, ["", "/a~1b"], ["a", "/~2"]),
        ({"type": "string", "format": "uri-reference"}, ["//a/b?c#d", "x"], ["\\x", "a b"]),
        (
            {"type": "string", "format": "regex"},
            [r"^a+(b|[^c\-]){2,}$", r"^\d{1,3}(?:\.x)?$", ""],
            ["(", "a)", "[", "*a", "a**", r"\Z", "[z-a]", "a{3,2}", "\\"],
        ),
        ({"type": "string", "not": {"format": "ipv4"}}, ["1.2.3", "x"], ["1.2.3.4"]),
    ],
)
def test_bounds_and_formats_are_exact(schema, right, wrong):
    grammar = COMPILER.compile("json_schema", json.dumps(schema))
    assert not [value for value in right if not takes(grammar, value)]
    assert not [value for value in wrong if takes(grammar, value)]


def test_documents_beside_the_schema_are_found_by_their_address():
    schema = {
        "$id": "https://example.com/root.json",
        "type": "array",
        "items": {"$ref": "parts.json#/$defs/n"},
        "x-documents": {"https://example.com/parts.json": {"$defs": {"n": {"type": "integer"}}}},
    }
    grammar = COMPILER.compile("json_schema", json.dumps(schema))
    assert takes(grammar, [1]) and not takes(grammar, ["a"])


def test_keywords_beside_a_reference_mean_nothing_up_to_draft_7():
    schema = {"definitions": {"n": {"type": "integer"}}, "$ref": "#/definitions/n", "maximum": 3}
    for draft, is_taken in (("http://json-schema.org/draft-07/schema#", True), (None, False)):
        source = schema | ({"$schema": draft} if draft else {})
        assert takes(COMPILER.compile("json_schema", json.dumps(source)), 7) is is_taken


def test_existing_name_of_a_witness_counts_once():
    """A free name may be repeated, and its last value counts: the value that `not` asks for comes last."""
    schema = {"type": "object", "not": {"additionalProperties": {"type": "integer"}}}
    grammar = COMPILER.compile("json_schema", json.dumps(schema))
    for text, is_taken in ((b'{"a": 1, "b": "x"}', True), (b'{"b": "x", "b": 1}', False)):
        matcher = grammar.start()._matcher
        tokens = [TOKEN_OF_BYTE[byte] for byte in text]
        assert (matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()) is is_taken
