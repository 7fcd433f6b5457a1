"""Items of arrays with uniqueItems are never repeated, in any spelling."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from tests.cases.grammars import TOKEN_OF_BYTE, accepts, allowed_tokens, byte_tokenizer, refusal, walk, word_tokenizer
from woolly.grammar import GrammarCompiler
from woolly.grammar.unique_items import repeats

BYTES = GrammarCompiler(byte_tokenizer())
TOKENIZER = word_tokenizer()
WORDS = GrammarCompiler(TOKENIZER)
ITEMS = {
    "any": {},
    "integers": {"type": "integer"},
    "strings": {"type": "string"},
    "short strings": {"type": "string", "maxLength": 2},
    "arrays": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    "objects": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    "mixed": {"type": ["integer", "null", "boolean"]},
    "sets": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
}
TEXTS = (
    "[]", "[1]", "[1, 2]", "[1,1]", "[1,2,1]", "[1,12,123]", "[0,0]", "[0,-0]", "[1.0,1]", "[10,1e1]", '["a","b"]',
    '["a","ab"]', '["a","ab","a"]', '["",""]', "[null,1,true]", "[null,null]", "[true,1]", "[[1],[1]]", "[[1],[1,2]]",
    "[[],[]]", "[[],[1]]", "[[1,1]]", "[[1],[2],[1]]", '[{"a":1},{"a":2}]', '[{"a":1},{"a":1}]',
    '[{"a":1,"b":"x"},{"a": 1, "b": "x"}]',
)  # fmt: skip


def schema_of(items: dict, **limits: int) -> dict:
    return {"type": "array", "items": items, "uniqueItems": True, **limits}


@pytest.mark.parametrize("name", ITEMS)
def test_only_arrays_of_different_items_are_accepted(name):
    schema = schema_of(ITEMS[name])
    with_repeats = BYTES.compile("json_schema", json.dumps({**schema, "uniqueItems": False}))
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    for text in TEXTS:
        is_right = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        assert accepts(grammar.start(), text.encode()) is (is_right and accepts(with_repeats.start(), text.encode()))


@pytest.mark.parametrize("name", [name for name in ITEMS if name != "short strings"])
def test_random_walks_never_repeat_an_item_and_never_get_stuck(name):
    schema = schema_of(ITEMS[name])
    grammar = WORDS.compile("json_schema", json.dumps(schema))
    found = [text for seed in range(8) if (text := walk(TOKENIZER, grammar, seed)) is not None]
    assert found
    for text in found:
        values = json.loads(text, parse_float=str)
        assert not repeats(text.strip()[1:-1].encode())
        assert isinstance(values, list)


def test_numbers_of_items_are_limited():
    grammar = BYTES.compile("json_schema", json.dumps(schema_of({"type": "integer"}, minItems=2, maxItems=3)))
    for text, is_right in (("[]", False), ("[1]", False), ("[1,2]", True), ("[1,2,3]", True), ("[1,2,3,4]", False)):
        assert accepts(grammar.start(), text.encode()) is is_right
    unlimited = BYTES.compile("json_schema", json.dumps(schema_of({"type": "integer"}, minItems=2)))
    assert accepts(unlimited.start(), b"[1,2,3,4,5]") and not accepts(unlimited.start(), b"[1]")
    assert "more than 100 items" in refusal(BYTES.compile, "json_schema", json.dumps(schema_of({}, maxItems=101)))


def test_token_that_leaves_only_a_repeated_item_is_not_allowed():
    grammar = BYTES.compile("json_schema", json.dumps(schema_of({"type": ["integer", "null"]})))
    constraint = grammar.start()
    for byte in b"[0,null,":
        constraint.accept(TOKEN_OF_BYTE[byte])
    allowed = allowed_tokens(constraint)
    assert not allowed[[TOKEN_OF_BYTE[byte] for byte in b"0n"]].any()
    assert np.all(allowed[[TOKEN_OF_BYTE[byte] for byte in b"123456789-"]])


def test_items_inside_a_lark_grammar_are_compared():
    source = 'start: "say " answer\nanswer: %json ' + json.dumps(schema_of({"type": "integer"}))
    grammar = BYTES.compile("lark", source)
    assert accepts(grammar.start(), b"say [1,2]")
    assert not accepts(grammar.start(), b"say [2,2]")


def test_indented_items_are_compared():
    schema = {**schema_of({"type": "integer"}), "x-whitespace": "indented"}
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    assert accepts(grammar.start(), b"[\n  1,\n  2\n]")
    assert not accepts(grammar.start(), b"[\n  1,\n  1\n]")


@pytest.mark.parametrize(
    ("items", "is_repeated"),
    [
        (b"1,1.0", True), (b"100,1E+2", True), (b"1e99999,1e99998", False),
        (b"0.1,1e-1", True), (b"0,-0.0", True), (b"1,-1", False), (b"1,10", False),
        (b"1,true", False), (b"0,false", False), (b'"1",1', False), (b'{"a":1,"b":2},{"b":2,"a":1}', True),
        (b"[],{}", False), (b"[1],[1.0]", True), (b"1e999999999999999,1e999999999999999", True),
    ],
)  # fmt: skip
def test_values_are_compared_as_json(items, is_repeated):
    assert repeats(items) is is_repeated
