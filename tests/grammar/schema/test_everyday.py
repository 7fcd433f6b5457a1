"""JSON schemas as people write them: all compile, and what an independent validator rejects is rejected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from jsonschema.validators import validator_for

from tests.cases.grammars import TOKEN_OF_BYTE, byte_tokenizer
from tests.grammar.schema import everyday_objects, everyday_values
from woolly.grammar import Grammar, GrammarCompiler

SCHEMAS = {**everyday_objects.SCHEMAS, **everyday_values.SCHEMAS}
COMPILER = GrammarCompiler(byte_tokenizer())
OTHERS = (None, True, "", "zz", "a\n", "12345678901", -7, 0, 1.25, 1e9, [], [1, 1], {}, {"other": 1})


def takes(grammar: Grammar, value: Any) -> bool:
    matcher = grammar.start()._matcher
    tokens = [TOKEN_OF_BYTE[byte] for byte in json.dumps(value, ensure_ascii=False).encode()]
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def mutations(value: Any) -> Iterator[Any]:
    """Yield values that differ in one place."""
    yield from OTHERS
    if isinstance(value, str):
        yield from (value[:-1], value + "0", value.upper(), value.replace("-", "/"), value[::-1])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (-value, value + 0.001, value * 1000, str(value))
    elif isinstance(value, list):
        yield from (value[:-1], [*value, *value], [*value, None])
        for i, item in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in mutations(item))
    elif isinstance(value, dict):
        yield {**value, "other": None}
        for name, item in value.items():
            yield {key: kept for key, kept in value.items() if key != name}
            yield from ({**value, name: changed} for changed in mutations(item))


def test_there_are_at_least_46_schemas():
    assert len(SCHEMAS) >= 46


@pytest.mark.parametrize("name", SCHEMAS)
def test_valid_instance_is_accepted_and_invalid_mutations_are_rejected(name):
    schema, right = SCHEMAS[name]
    validator = validator_for(schema, jsonschema.Draft202012Validator)(schema)
    validator.validate(right)
    wrong = [value for value in mutations(right) if not validator.is_valid(value)]
    assert len(wrong) > 10
    grammar = COMPILER.compile("json_schema", json.dumps(schema))
    assert takes(grammar, right)
    assert not [value for value in wrong if takes(grammar, value)]
