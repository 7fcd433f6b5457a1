"""Grammars let out what their format's parser reads as sound calls, and nothing else."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.engine import GrammarCompiler
from woolly.errors import RequestError
from woolly.serving.reasoning import REASONING_MARKS, ReasoningSplitter
from woolly.serving.tools import (
    FORMATS,
    Tool,
    ToolChoice,
    ToolParser,
    answer_grammar,
    call_grammar,
    gather,
)
from woolly.text import Tokenizer

CONTROL = ("[TOOL_CALLS]", "[ARGS]", "<|tool_call|>")
PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>")

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
WEATHER = Tool("weather", "Of a city", CITY, strict=True)
CLOCK = Tool("clock")
TOOLS = (WEATHER, CLOCK)
REQUIRED = ToolChoice(TOOLS, "required")
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
WRONG = '{"name": "weather", "arguments": {"city": "Bonn"}}'
NOON = '{"name": "clock", "arguments": {}}'

# One call in each format.
ONE = {
    "hermes": f"<tool_call>\n{ROME}\n</tool_call>",
    "llama3": ROME.replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS][{ROME}]",
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
    "granite": f"<|tool_call|>[{ROME}]",
    "generic": ROME,
}
TWO = {
    "hermes": f"<tool_call>\n{ROME}\n</tool_call>\n<tool_call>\n{NOON}\n</tool_call>",
    "mistral": f"[TOOL_CALLS][{ROME}, {NOON}]",
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]clock[ARGS]{}',
    "granite": f"<|tool_call|>[{ROME}, {NOON}]",
    "generic": f"{ROME}\n{NOON}",
}


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes, with marks as control tokens and as words."""
    vocabulary = byte_vocabulary()
    tokens, types = list(vocabulary["tokenizer.ggml.tokens"]), list(vocabulary["tokenizer.ggml.token_type"])
    for marks, kind in ((CONTROL, 3), (PLAIN, 4)):
        tokens += marks
        types += [kind] * len(marks)
    vocabulary |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.asarray(types, np.int32)}
    return Tokenizer.from_metadata(vocabulary)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer)


@pytest.fixture
def accepts(tokenizer, compiler):
    def accepts(source, text):
        constraint = compiler.compile("lark", source).start()
        for token in tokenizer.encode(text, add_special=False):
            if not constraint.allowed()[token]:
                return False
            constraint.accept(token)
        return constraint.may_end

    return accepts


def calls_of(format, text):
    parser = ToolParser(FORMATS[format], [tool.name for tool in TOOLS])
    return [(call.name, json.loads(call.arguments)) for call in gather(parser.push(text) + parser.finish())[1]]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_required_call_must_come_and_must_be_sound(format, tokenizer, accepts):
    source = call_grammar(REQUIRED, FORMATS[format], tokenizer)
    assert accepts(source, ONE[format])
    assert calls_of(format, ONE[format]) == [("weather", {"city": "Rome"})]
    assert not accepts(source, "Hello")
    assert not accepts(source, "")
    assert not accepts(source, ONE[format].replace("Rome", "Bonn"))
    assert not accepts(source, ONE[format].replace("weather", "other"))
    assert not accepts(source, ONE[format][:-1])
    assert not accepts(source, ONE[format] + " and text")


@pytest.mark.parametrize("format", sorted(TWO))
def test_several_calls_may_come_unless_they_must_not(format, tokenizer, accepts):
    assert accepts(call_grammar(REQUIRED, FORMATS[format], tokenizer), TWO[format])
    assert calls_of(format, TWO[format]) == [("weather", {"city": "Rome"}), ("clock", {})]
    single = call_grammar(replace(REQUIRED, is_parallel=False), FORMATS[format], tokenizer)
    assert accepts(single, ONE[format])
    assert not accepts(single, TWO[format])


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_named_tool_is_the_only_one_that_can_come(format, tokenizer, accepts):
    choice = ToolChoice(TOOLS, "required", frozenset(["clock"]), False)
    source = call_grammar(choice, FORMATS[format], tokenizer)
    assert not accepts(source, ONE[format])
    clock = ONE[format].replace("weather", "clock").replace('{"city": "Rome"}', "{}")
    assert accepts(source, clock)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_strict_tools_may_be_left_alone_but_not_be_called_wrongly(format, tokenizer, accepts):
    source = call_grammar(ToolChoice(TOOLS, "auto"), FORMATS[format], tokenizer)
    assert accepts(source, ONE[format])
    assert accepts(source, "Hello, <b>you</b> {there}.")
    assert not accepts(source, ONE[format].replace("Rome", "Bonn"))
    assert not accepts(source, WRONG)
    if format not in ("llama3", "generic"):
        assert accepts(source, f"I will look. {ONE[format]}")
        assert not accepts(source, f"I will look. {ONE[format].replace('Rome', 'Bonn')}")
        assert accepts(source, TWO[format])


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("is_open", [False, True])
def test_a_model_may_think_before_it_calls(format, is_open, tokenizer, accepts):
    marks = REASONING_MARKS[0]
    source = call_grammar(REQUIRED, FORMATS[format], tokenizer, marks=marks, is_open=is_open)
    thought = f"{'' if is_open else '<think>'}\nRome? <b> {{}}\n</think>\n\n{ONE[format]}"
    assert accepts(source, thought)
    assert not accepts(source, thought.replace("Rome", "Bonn"))
    assert accepts(source, ONE[format]) is not is_open
    splitter = ReasoningSplitter(marks, is_open=is_open)
    assert calls_of(format, splitter.push(thought).text) == [("weather", {"city": "Rome"})]


def test_an_answer_of_a_schema_may_stand_instead_of_calls(tokenizer, accepts):
    source = call_grammar(ToolChoice(TOOLS, "auto"), FORMATS["hermes"], tokenizer, answer=CITY)
    assert accepts(source, '{"city": "Oslo"}')
    assert accepts(source, ONE["hermes"])
    assert not accepts(source, "Oslo")


def test_an_answer_of_a_schema_may_follow_thoughts(tokenizer, accepts):
    source = answer_grammar(CITY, tokenizer, marks=REASONING_MARKS[0])
    assert accepts(source, '<think>Rome or Oslo?</think>\n{"city": "Oslo"}')
    assert accepts(source, '{"city": "Oslo"}')
    assert not accepts(source, "<think>Rome or Oslo?</think>Oslo")


def test_a_small_model_cannot_call_for_ever(tokenizer, accepts):
    source = call_grammar(REQUIRED, FORMATS["generic"], tokenizer)
    assert accepts(source, "\n".join([NOON] * 16))
    assert not accepts(source, "\n".join([NOON] * 17))


def test_tools_that_are_too_large_are_refused_by_name(tokenizer):
    huge = Tool("huge", None, {"properties": {f"name{i}": {"type": "string"} for i in range(2000)}})
    with pytest.raises(RequestError, match="the tools and their JSON schemas"):
        call_grammar(ToolChoice((huge,), "required"), FORMATS["hermes"], tokenizer)
