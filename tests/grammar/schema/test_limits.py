"""Schemas that are crafted, large or malformed: exact or rejected with a reason, and never slow."""

from __future__ import annotations

import json

import pytest

from tests.cases.grammars import TOKEN_OF_BYTE, byte_tokenizer
from woolly.errors import RequestError
from woolly.grammar import GrammarCompiler
from woolly.grammar.json_schema import prepare_schema_value
from woolly.grammar.schema import budget

COMPILER = GrammarCompiler(byte_tokenizer())
UNIQUE = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 9, "not": {"const": 4}}, ["2", "8"], ["4", "3"]),
        ({"type": "integer", "multipleOf": 2, "not": {"const": 5}}, ["4"], ["5"]),
        ({"type": "integer", "exclusiveMinimum": 10**30}, [str(10**30 + 1)], [str(10**30)]),
        ({"type": "integer", "exclusiveMaximum": -(10**30)}, [str(-(10**30) - 1)], [str(-(10**30))]),
        ({"type": "number", "maximum": -(10**30) - 1}, [str(-(10**30) - 1)], [str(-(10**30))]),
        (
            UNIQUE | {"prefixItems": [{"type": "integer"}], "items": False, "contains": {"const": 5}},
            ["[5]"],
            ["[]", "[3]", "[5, 5]"],
        ),
        (UNIQUE | {"prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 1 << 31}, ["[1, 2]"], ["[1, 1]"]),
        ({"type": "string", "pattern": "(?i)^[^a]$"}, ['"b"', '"B"'], ['"a"', '"A"']),
        ({"type": "string", "pattern": r"^\ud83d\ude00$"}, ['"😀"'], ['"a"']),
    ],
)
def test_values_at_the_limits_are_exact(schema, right, wrong):
    grammar = COMPILER.compile("json_schema", json.dumps(schema))
    for text in [*right, *wrong]:
        matcher = grammar.start()._matcher
        tokens = [TOKEN_OF_BYTE[byte] for byte in text.encode()]
        assert (matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()) is (text in right), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "multipleOf": 2, "not": {"const": 4}}, "multipleOf with 'not'"),
        (
            UNIQUE | {"prefixItems": [{}], "items": False, "minItems": 2, "contains": {"const": 5}},
            "no value satisfies it",
        ),
        (
            UNIQUE | {"prefixItems": [{"enum": list(range(400))}] * 2, "items": {"enum": list(range(400))}},
            "too many arrays",
        ),
        ({"type": "array", "prefixItems": [{}] * 3001}, "too many prefixItems"),
        ({"type": "string", "pattern": "a{" + "9" * 5000 + "}"}, "cannot be used"),
        ({"type": "string", "pattern": r"\ud800\uzzzz"}, "hexadecimal digits"),
        ({"type": "string", "pattern": r"\ud800\u0041"}, "low surrogate"),
        ({"type": "string", "pattern": r"^\u{-5}$"}, "hexadecimal digits"),
        ({"$ref": "#/allOf/" + "9" * 5000, "allOf": [{}]}, "cannot be used"),
        ({"$id": "http://[::1", "$ref": "x"}, "cannot be used"),
    ],
)
def test_schema_is_rejected_with_a_reason(schema, message):
    with pytest.raises(RequestError, match=message):
        prepare_schema_value(schema)


def test_translation_that_takes_too_long_is_rejected(monkeypatch):
    schema = {"oneOf": [{"type": "string", "pattern": f"{letter}.*[xyz]{{3}}"} for letter in "abc"]}
    prepare_schema_value(schema)
    monkeypatch.setattr(budget, "MAX_SECONDS", -1.0)
    schema["oneOf"][0]["pattern"] = "d.*[xyz]{4}"
    with pytest.raises(RequestError, match="takes too long to translate"):
        prepare_schema_value(schema)
