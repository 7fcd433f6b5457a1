"""Hostile grammars end in a refusal, in bounded time and memory, and never take the process down."""

from __future__ import annotations

import json

import pytest

from tests.cases.grammars import byte_tokenizer, refusal, walk
from woolly.errors import RequestError
from woolly.grammar import GrammarCompiler

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


def joined(key: str, values: list) -> str:
    return json.dumps({"allOf": [{key: value} for value in values]})


def referring() -> str:
    definitions = {str(i): {"pattern": PATTERNS[i], "$ref": f"#/$defs/{i + 1}"} for i in range(25)}
    definitions["25"] = {"type": "string"}
    return json.dumps({"$ref": "#/$defs/0", "$defs": definitions})


PATTERNS = [f"a{{{i}}}" for i in range(26)]


def rules(n: int, line: str, last: str, letter: str = "r") -> str:
    return f"start: {letter}0\n" + "\n".join(line.format(i, i + 1) for i in range(n)) + f"\n{letter}{n}: {last}"


REFUSED = {
    "nested schema": ("json_schema", nested(100_000), "nested too deeply"),
    "nested a little too deep": ("json_schema", nested(200), "nested too deeply"),
    "long chain of references": ("json_schema", chain(11_000), "too many subschemas; the maximum is"),
    "branches that multiply": ("json_schema", branching(12), "more than 400 alternatives"),
    "many properties": ("json_schema", json.dumps({"properties": {str(i): {} for i in range(9000)}}), "too many prop"),
    "many patterns": ("json_schema", json.dumps({"patternProperties": {f"^{i}": {} for i in range(99)}}), "patternPr"),
    "huge schema": ("json_schema", json.dumps({"enum": ["x" * 1000] * 1100}), "characters; the maximum is"),
    "endless reference": ("json_schema", '{"allOf": [{"$ref": "#"}]}', "cannot be used"),
    "huge count": ("json_schema", '{"type": "string", "minLength": 99999999999}', "cannot be used"),
    "huge number": ("json_schema", '{"const": ' + "9" * 6000 + "}", "JSON schema"),
    "patterns that meet": ("json_schema", joined("pattern", PATTERNS), "combines 26 patterns, formats and lengths"),
    "patterns that meet behind references": (
        "json_schema",
        referring(),
        "combines 25 patterns",
    ),
    "patterns that meet in options": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"pattern": p}, {"type": "null"}]} for p in PATTERNS]}),
        "combines 26 patterns",
    ),
    "endless joints": (
        "json_schema",
        json.dumps({"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(999)}}),
        "more than 100 levels",
    ),
    "large multiple": ("json_schema", '{"type": "integer", "multipleOf": 9999991}', "requires multiples of 9999991"),
    "large decimal multiple": ("json_schema", '{"multipleOf": 99999.91}', "requires multiples of 9999991"),
    "multiples that meet": ("json_schema", joined("multipleOf", [97, 101, 103]), "requires multiples of 1009091"),
    "long literal": ("json_schema", json.dumps({"enum": ["x" * 20_000]}), "20002 characters in a value of 'enum'"),
    "long constant": ("json_schema", json.dumps({"const": ["x" * 9000] * 2}), "characters in a value of 'const' at #"),
    "long name": ("json_schema", json.dumps({"properties": {"x" * 20_000: {}}}), "20000 characters in a name"),
    "long choice": ("choice", json.dumps(["x" * 20_000]), "a string of 20000 characters"),
    "nested regex": ("regex", "(" * 5000 + "a" + ")" * 5000, "nested parentheses"),
    "huge regex": ("regex", "a" * 200_000, "characters; the maximum is"),
    "nested Lark": ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "deeply nested"),
    "rules that double": ("lark", rules(50, "R{0}: R{1} R{1}", '"a"', "R"), "too big"),
    "nested GBNF": ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_grammar_is_rejected(name):
    kind, source, message = REFUSED[name]
    refused = refusal(COMPILER.compile, kind, source)
    assert message in refused
    assert len(refused) < 400


@pytest.mark.parametrize(
    ("source", "seconds"),
    [
        (joined("pattern", PATTERNS), 5),  # needs more memory than there is
        ('{"type": "integer", "multipleOf": 9999991}', 1),  # takes minutes
    ],
)
def test_grammar_within_the_limits_is_tried_in_a_child_process(source, seconds, monkeypatch):
    """The bounds on sources are lifted: the trial alone must hold."""
    monkeypatch.setattr("woolly.grammar.schema.shapes.MAX_TEXTS", 1000)
    monkeypatch.setattr("woolly.grammar.schema.numbers.MAX_MULTIPLE", 1 << 60)
    monkeypatch.setattr("woolly.grammar.limited_compile.SECONDS", seconds)
    with pytest.raises(RequestError, match="too costly to compile") as caught:
        GrammarCompiler(TOKENIZER).compile("json_schema", source)
    assert (caught.value.code, caught.value.field) == ("grammar", "json_schema")


def test_multiple_within_the_limits_compiles():
    for multiple in (7, 9973, 10_000_000, 0.01, 0.00025):
        COMPILER.compile("json_schema", json.dumps({"type": "number", "multipleOf": multiple}))


@pytest.mark.rare
def test_two_multiples_within_the_limits_compile(monkeypatch):
    monkeypatch.setattr(
        "woolly.grammar.limited_compile.SECONDS", 16
    )  # 4.7 on a quiet machine; a busy neighbour may double it
    COMPILER.compile("json_schema", json.dumps({"anyOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}))


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
def test_costly_grammar_continues_or_fails_but_does_not_hang(kind, source):
    grammar = COMPILER.compile(kind, source)
    try:
        walk(TOKENIZER, grammar, seed=1, most=30)
    except RequestError as error:
        assert "grammar" in str(error)
