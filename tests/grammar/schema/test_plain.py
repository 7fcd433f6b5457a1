"""Simple patterns are left to llguidance, which then accepts the same values as the translation to Lark."""

from __future__ import annotations

import json

import pytest

from tests.cases.grammars import accepts, byte_tokenizer
from woolly.grammar import GrammarCompiler, json_schema
from woolly.grammar.schema.plain import plain_schema

PLAIN = ["^[a-z]+-[0-9]{3,5}$", "^[A-Z]{2}$", "^a b?c*$", "^[a-z0-9_-]+$", "^#[0-9a-fA-F]{6}$", "^a{0,2}$", "^a/:@$"]
OTHER = ["^(a|b)$", "^a|b$", "[a-z]", "^[A-z]$", "^[^a]$", "^a{3,2}$", "^[z-a]$", "^.$", r"^\d$", "^é$", '^"$', "^a$\n"]
TEXTS = ["", "a", "A", "aa", "aaa", "AB", "ab-123", "ab-12", "a bc", "a ", "a_-1", "#a0B1c2", "a/:@", "é", 'a"', "a\n"]


def _schemas(pattern: str) -> list[dict]:
    names = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    return [{"type": "string", "pattern": pattern}, names]


@pytest.mark.parametrize("pattern", PLAIN)
def test_simple_pattern_means_the_same_in_both_grammars(pattern, monkeypatch):
    found = []
    for is_plain in (True, False):
        if not is_plain:
            monkeypatch.setattr(json_schema, "plain_schema", lambda schema: None)
        compiler = GrammarCompiler(byte_tokenizer())
        text, names = (compiler.compile("json_schema", json.dumps(schema)) for schema in _schemas(pattern))
        spelled = [json.dumps(value, ensure_ascii=False) for value in TEXTS]
        taken = [value for value in spelled if accepts(text.start(), value.encode())]
        assert taken == [value for value in spelled if accepts(names.start(), f"{{{value}: 1}}".encode())]
        found.append(taken)
    assert found[0] == found[1] != []


@pytest.mark.parametrize("pattern", PLAIN)
def test_simple_pattern_is_plain(pattern):
    assert all(plain_schema(schema) is not None for schema in _schemas(pattern))


@pytest.mark.parametrize("pattern", OTHER)
def test_other_pattern_is_translated_to_lark(pattern):
    assert all(plain_schema(schema) is None for schema in _schemas(pattern))
