"""Hostile grammars end in a refusal, in bounded time and memory, and never take the process down."""

from __future__ import annotations

import json

import pytest

from tests.cases.grammars import byte_tokenizer, refusal, walk
from woolly.engine.constraint import GrammarCompiler
from woolly.errors import RequestError

TOKENIZER = byte_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER)


def nested(n: int) -> str:
    return '{"items":' * n + "{}" + "}" * n


def chain(n: int) -> str:
    definitions = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "type": "object"} for i in range(n)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": definitions | {f"d{n}": {}}})


def branching(n: int) -> str:
    parts = [{"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {}}} for j in range(10)]} for i in range(n)]
    return json.dumps({"allOf": parts})


def rules(n: int, line: str, last: str, letter: str = "r") -> str:
    return f"start: {letter}0\n" + "\n".join(line.format(i, i + 1) for i in range(n)) + f"\n{letter}{n}: {last}"


REFUSED = {
    "nested schema": ("json_schema", nested(100_000), "nested too deeply"),
    "nested a little too deep": ("json_schema", nested(200), "nested too deeply"),
    "long chain of references": ("json_schema", chain(11_000), "schemas, which is the limit"),
    "branches that multiply": ("json_schema", branching(12), "schema too large"),
    "many properties": ("json_schema", json.dumps({"properties": {str(i): {} for i in range(9000)}}), "too many prop"),
    "many patterns": ("json_schema", json.dumps({"patternProperties": {f"^{i}": {} for i in range(99)}}), "patternPr"),
    "huge schema": ("json_schema", json.dumps({"enum": ["x" * 1000] * 1100}), "characters; at most"),
    "endless reference": ("json_schema", '{"allOf": [{"$ref": "#"}]}', "cannot be used"),
    "huge count": ("json_schema", '{"type": "string", "minLength": 99999999999}', "cannot be used"),
    "huge number": ("json_schema", '{"const": ' + "9" * 6000 + "}", "JSON schema"),
    "nested regex": ("regex", "(" * 5000 + "a" + ")" * 5000, "nested parentheses"),
    "huge regex": ("regex", "a" * 200_000, "characters; at most"),
    "nested Lark": ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "deeply nested"),
    "rules that double": ("lark", rules(50, "R{0}: R{1} R{1}", '"a"', "R"), "too big"),
    "nested GBNF": ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_grammar_is_refused(name):
    kind, source, message = REFUSED[name]
    refused = refusal(COMPILER.compile, kind, source)
    assert message in refused
    assert len(refused) < 400


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", chain(3000)),  # overflows a common stack of 8 MiB
        ("lark", rules(2000, "r{}: r{}", '"a"')),  # so does this
        ("regex", "((a{1000}){1000}){1000}"),
        ("regex", "[ab]*a[ab]{40}"),
        ("lark", 'start: "a" start'),  # never ends
        ("lark", 'start: start start | "a" | ""'),
        ("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 1000000000}'),
        ("grammar", 'root ::= (("a" [b-z]{1,1000}){1000}){1000} | "(" root ")"'),
    ],
)
def test_a_costly_grammar_goes_on_or_fails_but_does_not_hang(kind, source):
    grammar = COMPILER.compile(kind, source)
    try:
        walk(TOKENIZER, grammar, seed=1, most=30)
    except RequestError as error:
        assert "grammar" in str(error)
