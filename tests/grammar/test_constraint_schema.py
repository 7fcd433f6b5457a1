"""JSON schemas: walks validate, and what cannot be kept is refused by its name, never ignored."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.cases.grammars import accepts, allowed_tokens, byte_tokenizer, refusal, walk, word_tokenizer
from tests.cases.vocabularies import find_vocabularies
from woolly.grammar import GrammarCompiler
from woolly.tokens import Tokenizer

BYTES = GrammarCompiler(byte_tokenizer())
WORDS = word_tokenizer()
COMPILER = GrammarCompiler(WORDS)

SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 4},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "open": {"type": "object", "properties": {"a": {"type": "boolean"}}, "minProperties": 1, "required": ["a"]},
    "tree": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/definitions/node"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/definitions/node",
    },
    "union": {"anyOf": [{"type": "string", "pattern": "^[a-c]+$"}, {"const": {"x": [1, 2.5]}}, {"type": "null"}]},
    "either": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        ]
    },
    "all": {"allOf": [{"type": "integer", "minimum": -3}, {"maximum": 12}, {"multipleOf": 3}]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
        "items": False,
        "minItems": 2,
    },
    "map": {
        "type": "object",
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": {"type": "string", "format": "date"},
        "maxProperties": 3,
    },
    "old": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/old",
        "type": "object",
        "properties": {"n": {"$ref": "http://example.com/old#/definitions/n"}},
        "required": ["n"],
        "definitions": {"n": {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 2}},
    },
    "annotated": {
        "title": "T", "description": "D", "$comment": "C", "examples": [1], "default": 2, "deprecated": True,
        "readOnly": True, "x-order": 3, "type": "array", "uniqueItems": False, "maxItems": 2,
    },
    "any": {},
    "generated names": {"$ref": "#/$defs/Pick<A|B>", "$defs": {"Pick<A|B>": {"enum": [1, 2]}}},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_walks_of_a_schema_validate(name):
    schema = SCHEMAS[name]
    grammar = COMPILER.compile("json_schema", json.dumps(schema))
    texts = [text for seed in range(25) if (text := walk(WORDS, grammar, seed)) is not None]
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("path", find_vocabularies(), ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_random_walks_validate_with_real_vocabularies(path):
    tokenizer = Tokenizer.from_gguf(path)
    if tokenizer.model in ("bert", "t5"):
        pytest.skip("an encoder's vocabulary cannot spell JSON")
    compiler = GrammarCompiler(tokenizer)
    for name in ("person", "tree", "map", "any"):
        grammar = compiler.compile("json_schema", json.dumps(SCHEMAS[name]))
        texts = [text for seed in range(4) if (text := walk(tokenizer, grammar, seed)) is not None]
        assert texts
        for text in texts:
            jsonschema.validate(json.loads(text), SCHEMAS[name])
    constraint = grammar.start()
    assert allowed_tokens(constraint).shape == (tokenizer.n_vocab,)


@pytest.mark.parametrize("keyword", ["extends", "disallow", "divisibleBy", "x-guidance"])
@pytest.mark.parametrize(
    "draft", [None, "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"]
)
def test_unsupported_constraining_keyword_is_named(keyword, draft):
    inner = {"type": ["object", "array"], keyword: {}}
    schema = {"properties": {"a": {"items": [{"anyOf": [inner]}]}}} | ({"$schema": draft} if draft else {})
    message = refusal(BYTES.compile, "json_schema", json.dumps(schema))
    assert f"uses {keyword!r} at #/properties/a/items/0/anyOf/0" in message


def test_keywords_are_found_behind_references_but_not_in_unreferenced_schemas():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"extends": {}}}}
    assert "uses 'extends' at #/$defs/b" in refusal(BYTES.compile, "json_schema", json.dumps(schema))
    schema["$defs"]["a"] = {"type": "null"}
    BYTES.compile("json_schema", json.dumps(schema))


def test_definitions_next_to_their_reference_are_found():
    colour = {"$ref": "#/$defs/F", "$defs": {"F": {"enum": ["red"]}}}  # as schemars writes it
    schema = {"type": "object", "properties": {"a": colour, "b": dict(colour)}, "required": ["a", "b"]}
    schema["additionalProperties"] = False
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    assert accepts(grammar.start(), b'{"a": "red", "b": "red"}')
    assert not accepts(grammar.start(), b'{"a": "blue", "b": "red"}')
    schema["properties"]["b"] = {"$ref": "#/$defs/F", "$defs": {"F": {"type": "null"}}}
    refused = refusal(BYTES.compile, "json_schema", json.dumps(schema))
    assert "refers to '#/$defs/F' at #/properties/a, which has several meanings" in refused


def test_property_names_and_values_are_not_mistaken_for_keywords():
    schema = {
        "type": "object",
        "properties": {"not": {"type": "integer"}, "if": {"const": {"not": 1}}},
        "default": {"not": 1},
    }
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    assert accepts(grammar.start(), b'{"not": 3, "if": {"not": 1}}')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string", "format": "idn-hostname"}, "format 'idn-hostname' is not one that can be kept"),
        (
            {"$ref": "https://example.com/other.json"},
            "refers to 'https://example.com/other.json' at #, which is another",
        ),
        ({"$ref": "file:///etc/passwd"}, "which is another document"),
        ({"$ref": "#/$defs/none"}, "refers to '#/$defs/none' at #, which is not there; put definitions into '$defs'"),
        ({"type": "string", "pattern": "(?<!a)b"}, "look-around behind a position is not supported"),
        ({"type": "string", "pattern": r"\bword\b"}, "word boundaries"),
        ({"type": "object", "minProperties": 2}, "has minProperties 2 beside properties of any name"),
        (
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "contains": {"const": "a"}},
            "uses 'uniqueItems' at # with 'contains'",
        ),
        ({"not": {"multipleOf": 3}}, "uses 'multipleOf' at #/not"),
        ({"not": {}}, "no value satisfies it"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "cannot be used"),
        ({"type": "hat"}, "Invalid type: hat"),
        ({"$schema": "http://json-schema.org/draft-03/schema#", "type": "any"}, "draft 3 is not supported"),
        ({"$ref": "#"}, "refers to itself at # without a value in between"),
        (False, "must be an object, not false"),
        (3, "must be an object, not 3"),
    ],
)
def test_unenforceable_schema_gives_a_one_line_error(schema, message):
    refused = refusal(BYTES.compile, "json_schema", json.dumps(schema))
    assert message in refused
    assert "\n" not in refused


@pytest.mark.parametrize("source", ["", "{", '{"type": NaN}', '{"maximum": 1e999}', '{"const": "\\ud800"}', "nul"])
def test_non_json_schema_is_rejected(source):
    assert "JSON schema" in refusal(BYTES.compile, "json_schema", source)


def test_escaped_property_name_does_not_bypass_its_schema():
    schema = {"type": "object", "properties": {"foo": {"type": "integer"}}, "additionalProperties": True}
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    assert accepts(grammar.start(), b'{"foo": 1, "bar": "x"}')
    assert not accepts(grammar.start(), b'{"foo": "x"}')
    assert not accepts(grammar.start(), b'{"\\u0066oo": "x"}')
    assert not accepts(grammar.start(), b'{"foo": 1, "foo": 2}')


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"const": "a\0b"}, [r'"a\u0000b"'], ['"ab"', r'"a\u0001b"', '"a\0b"']),
        ({"const": "a\x7fb"}, [r'"a\u007fb"', r'"a\u007Fb"'], ['"ab"']),
        ({"const": "a\x1fb"}, [r'"a\u001fb"'], ['"ab"', r'"\u0061\u001fb"']),
        ({"const": "a\nb"}, [r'"a\nb"'], ['"ab"', '"a\nb"']),
        ({"enum": ["x\x1b[0m", "y"]}, [r'"x\u001b[0m"', '"y"'], ['"x[0m"']),
        ({"const": {"k": ["\x01"]}}, [r'{"k": ["\u0001"]}'], ['{"k": [""]}']),
        ({"const": {"\x01": 1}}, [r'{"\u0001": 1}'], ['{"": 1}']),
        ({"properties": {"a\x01": {"const": "\x02"}}}, [r'{"a\u0001":"\u0002"}'], ['{"a":"\x02"}', '{"a":""}']),
        ({"type": "string", "pattern": "^a\x01b$"}, [r'"a\u0001b"'], ['"ab"', r'"a\u0002b"']),
        ({"type": "string", "pattern": r"^a\x01b$"}, [r'"a\u0001b"'], ['"ab"']),
        ({"type": "string", "pattern": r"^a\u007fb$"}, [r'"a\u007fb"'], ['"ab"']),
        ({"type": "string", "pattern": r"^a\u{1}b$"}, [r'"a\u0001b"'], ['"ab"']),
        ({"type": "string", "pattern": r"^a\vb$"}, [r'"a\u000bb"'], ['"ab"']),
        ({"type": "string", "pattern": r"^a[\x01-\x02]b$"}, [r'"a\u0001b"', r'"a\u0002b"'], ['"ab"', r'"a\u0003b"']),
        ({"type": "string", "pattern": r"^a[^\x00-\x1f\x7f]b$"}, ['"acb"'], ['"ab"', r'"a\u0001b"']),
        ({"type": "string", "pattern": r"^a\\x01b$"}, [r'"a\\x01b"'], ['"ab"', r'"a\u0001b"']),
        (
            {"patternProperties": {"^a\x01b$": {"type": "null"}}, "type": "object", "additionalProperties": False},
            [r'{"a\u0001b":null}'],
            ['{"ab":null}'],
        ),
    ],
)
def test_control_characters_are_kept(schema, right, wrong):
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    assert [text for text in right if not accepts(grammar.start(), text.encode())] == []
    assert [text for text in wrong if accepts(grammar.start(), text.encode())] == []


def test_control_character_beside_free_names_is_kept():
    r"""A printable character has one spelling, so a free name "\u0061" is no other way to write the name "a"."""
    free = {"type": "object", "properties": {"a": {"const": "\x01"}}, "additionalProperties": {"type": "integer"}}
    grammar = BYTES.compile("json_schema", json.dumps(free))
    assert accepts(grammar.start(), rb'{"a":"\u0001"}')
    assert accepts(grammar.start(), rb'{"b":1}')
    assert not accepts(grammar.start(), rb'{"\u0061":1}')
    assert not accepts(grammar.start(), rb'{"a":"a"}')


def test_whitespace_is_bounded():
    compact = BYTES.compile("json_object", "")
    indented = BYTES.compile("json_schema", '{"type": "object", "x-whitespace": "indented"}')
    for text in (b'{"a": 1, "b": [1, 2]}', b'{"a":1,"b":[1,2]}', b"{}"):
        assert accepts(compact.start(), text)
        assert accepts(indented.start(), text)
    for text in (b'{\n"a": 1}', b'{ "a": 1}', b'{"a": 1 }', b'{"a" : 1}', b'{"a":  1}', b'{"a":\n1}'):
        assert not accepts(compact.start(), text)
    assert accepts(indented.start(), b'{\n  "a": 1,\n  "b": [1, 2]\n}')
    assert not accepts(indented.start(), b'{\n\n\n"a": 1}')
    assert not accepts(indented.start(), b'{  "a": 1}')
    assert "3; expected compact or indented" in refusal(BYTES.compile, "json_schema", '{"x-whitespace": 3}')


def test_property_order_is_that_of_the_schema():
    grammar = BYTES.compile("json_schema", '{"properties": {"b": true, "a": true}, "type": "object"}')
    assert accepts(grammar.start(), b'{"b": 1, "a": 2}')
    assert not accepts(grammar.start(), b'{"a": 1, "b": 2}')


def test_annotations_constrain_no_value():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"$schema": {"type": "string", "format": "semver"}, "a": {"$id": "#here", "uniqueItems": False}},
    }
    grammar = BYTES.compile("json_schema", json.dumps(schema))
    assert accepts(grammar.start(), b'{"$schema": "x", "a": [1, 1]}')
