"""Objects are closed unless their schema says otherwise; objects that meet in one value are closed as one."""

from __future__ import annotations

import json

import pytest

from tests.cases.grammars import accepts, byte_tokenizer
from woolly.grammar import GrammarCompiler

COMPILER = GrammarCompiler(byte_tokenizer())
INT = {"type": "integer"}


def takes(schema: dict, text: str) -> bool:
    return accepts(COMPILER.compile("json_schema", json.dumps(schema)).start(), text.encode())


def an_object(**properties: object) -> dict:
    return {"type": "object", "properties": properties}


CASES = {
    "plain": (an_object(a=INT), ['{"a": 1}', "{}"], ['{"a": 1, "b": 2}', '{"b": 2}']),
    "without properties": ({"type": "object"}, ['{"a": 1}'], []),
    "no properties at all": (an_object(), ["{}"], ['{"a": 1}']),
    "said open": (an_object(a=INT) | {"additionalProperties": True}, ['{"a": 1, "b": 2}'], []),
    "said typed": (an_object(a=INT) | {"additionalProperties": INT}, ['{"a": 1, "b": 2}'], ['{"b": "x"}']),
    "nested": (an_object(a=an_object(b=INT)), ['{"a": {"b": 1}}'], ['{"a": {"c": 1}}', '{"a": {}, "c": 1}']),
    "items": ({"items": an_object(b=INT), "type": "array"}, ['[{"b": 1}]'], ['[{"c": 1}]']),
    "a definition": (
        {"$ref": "#/$defs/P", "$defs": {"P": an_object(a=INT)}},
        ['{"a": 1}'],
        ['{"a": 1, "b": 2}'],
    ),
    "one of a kind in allOf": ({"allOf": [an_object(a=INT)]}, ['{"a": 1}'], ['{"b": 1}']),
    "options": ({"anyOf": [an_object(a=INT), {"type": "null"}]}, ['{"a": 1}', "null"], ['{"b": 1}']),
    "two that meet": (
        {"allOf": [{"$ref": "#/$defs/A"}, an_object(b=INT)], "$defs": {"A": an_object(a=INT)}},
        ['{"a": 1, "b": 2}', '{"b": 2}'],
        ['{"c": 3}', '{"a": "x"}', '{"a": 1, "b": 2, "c": 3}'],
    ),
    "a base and its own": (
        {"$ref": "#/$defs/A", "properties": {"b": INT}, "$defs": {"A": an_object(a=INT)}},
        ['{"a": 1, "b": 2}'],
        ['{"c": 3}'],
    ),
    "options that meet an object": (
        {"properties": {"k": INT}, "type": "object", "anyOf": [{"properties": {"a": INT}, "required": ["a"]},
                                                             {"properties": {"b": INT}, "required": ["b"]}]},
        ['{"k": 1, "a": 1}', '{"k": 1, "b": 1}'],
        ['{"k": 1, "a": 1, "c": 1}'],
    ),
    "required without a schema": (an_object(a=INT) | {"required": ["b"]}, ['{"a": 1, "b": "x"}'], ['{"b": 1, "c": 1}']),
    "patterns": (
        an_object(a=INT) | {"patternProperties": {"^x-": INT}},
        ['{"a": 1, "x-b": 2}'],
        ['{"a": 1, "b": 2}'],
    ),
    "itself": (
        {"$ref": "#/$defs/N", "$defs": {"N": an_object(n={"$ref": "#/$defs/N"})}},
        ['{"n": {"n": {}}}'],
        ['{"n": {"m": {}}}'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_object_with_properties_is_closed_by_default(name):
    schema, taken, refused = CASES[name]
    for text in taken:
        assert takes(schema, text), text
    for text in refused:
        assert not takes(schema, text), text
