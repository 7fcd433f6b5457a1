"""Grammars let out what their format's parser reads as sound calls, and nothing else."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.grammars import allowed_tokens, may_end
from tests.cases.tiny import byte_vocabulary
from woolly.chat.events import gather
from woolly.chat.reasoning import ReasoningSplitter, find_reasoning
from woolly.chat.tools.format import FORMATS
from woolly.chat.tools.grammar import answer_grammar, call_grammar
from woolly.chat.tools.markers import marker_ids, markers_of
from woolly.chat.tools.parser import ToolParser
from woolly.chat.tools.tool import Tool, ToolChoice
from woolly.errors import RequestError
from woolly.grammar import GrammarCompiler
from woolly.tokens import Tokenizer

CONTROL = (
    *("[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    "<|call|>",
)
PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>")

THINK = find_reasoning("<think>")
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
WEATHER = Tool("weather", "Of a city", CITY, strict=True)
CLOCK = Tool("clock")
TOOLS = (WEATHER, CLOCK)
REQUIRED = ToolChoice(TOOLS, "required")
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
WRONG = '{"name": "weather", "arguments": {"city": "Bonn"}}'
NOON = '{"name": "clock", "arguments": {}}'

# One call in each format; @ stands for its arguments.
EMPTY = {
    "qwen_xml": "<tool_call>\n<function=weather>\n@</function>\n</tool_call>",
    "seed": "<seed:tool_call>\n<function=weather>\n@</function>\n</seed:tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="weather">\n@</invoke>\n</minimax:tool_call>',
    "glm": "<tool_call>weather\n@</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n@\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_short": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>@"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>@"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "command": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": @}]<|END_ACTION|>',
    "lfm2": "<|tool_call_start|>[weather(@)]<|tool_call_end|>",
    "nemotron": '<TOOLCALL>[{"name": "weather", "arguments": @}]</TOOLCALL>',
    "gemma": "<|tool_call>call:weather@<tool_call|>",
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>@",
}
ROME_ARGUMENT = dict.fromkeys(EMPTY, '{"city": "Rome"}') | {
    "qwen_xml": "<parameter=city>\nRome\n</parameter>\n",
    "seed": "<parameter=city>\nRome\n</parameter>\n",
    "minimax": '<parameter name="city">Rome</parameter>\n',
    "glm": "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n",
    "lfm2": 'city="Rome"',
}


def _two(name):
    """Two calls: the second begins after what opens them all, and ends before what closes them."""
    first = EMPTY[name].replace("@", ROME_ARGUMENT[name])
    second = _clock(name)
    if name == "command":
        return first.replace("}]", "}, " + second.partition("[")[2].replace('"0"', '"1"').partition("]")[0] + "]")
    if name in ("lfm2", "nemotron"):
        return first.replace("]", ", " + second.partition("[")[2].partition("]")[0] + "]")
    section, end = FORMATS[name].section
    between = FORMATS[name].between
    return first.removesuffix(end) + between + second.removeprefix(section)


def _clock(name):
    arguments = "" if name in ("qwen_xml", "seed", "minimax", "glm", "lfm2") else "{}"
    return EMPTY[name].replace("weather", "clock").replace("@", arguments)


ONE = {
    "hermes": f"<tool_call>\n{ROME}\n</tool_call>",
    "llama3": ROME.replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS][{ROME}]",
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
    "granite": f"<|tool_call|>[{ROME}]",
    "generic": ROME,
    **{name: text.replace("@", ROME_ARGUMENT[name]) for name, text in EMPTY.items()},
}
TWO = {
    "hermes": f"<tool_call>\n{ROME}\n</tool_call>\n<tool_call>\n{NOON}\n</tool_call>",
    "mistral": f"[TOOL_CALLS][{ROME}, {NOON}]",
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]clock[ARGS]{}',
    "granite": f"<|tool_call|>[{ROME}, {NOON}]",
    "generic": f"{ROME}\n{NOON}",
    **{name: _two(name) for name in EMPTY if name != "harmony"},
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
            if not allowed_tokens(constraint)[token]:
                return False
            constraint.accept(token)
        return may_end(constraint)

    return accepts


def calls_of(format, text):
    parser = ToolParser(FORMATS[format], TOOLS)
    return [(call.name, json.loads(call.arguments)) for call in gather(parser.push(text) + parser.finish()).tool_calls]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_required_call_must_come_and_must_be_valid(format, tokenizer, accepts):
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
def test_parallel_calls_are_allowed_unless_disabled(format, tokenizer, accepts):
    assert accepts(call_grammar(REQUIRED, FORMATS[format], tokenizer), TWO[format])
    assert calls_of(format, TWO[format]) == [("weather", {"city": "Rome"}), ("clock", {})]
    single = call_grammar(replace(REQUIRED, is_parallel=False), FORMATS[format], tokenizer)
    assert accepts(single, ONE[format])
    assert not accepts(single, TWO[format])


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_named_tool_is_the_only_one_allowed(format, tokenizer, accepts):
    choice = ToolChoice(TOOLS, "required", frozenset(["clock"]), False)
    source = call_grammar(choice, FORMATS[format], tokenizer)
    assert not accepts(source, ONE[format])
    plain = ONE[format].replace("weather", "clock").replace('{"city": "Rome"}', "{}")
    clock = _clock(format) if format in EMPTY else plain
    assert accepts(source, clock)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_strict_tools_are_optional_but_arguments_must_match(format, tokenizer, accepts):
    source = call_grammar(ToolChoice(TOOLS, "auto"), FORMATS[format], tokenizer)
    assert accepts(source, ONE[format])
    assert accepts(source, "Hello, <b>you</b> {there}.")
    assert not accepts(source, ONE[format].replace("Rome", "Bonn"))
    assert not accepts(source, WRONG)
    if format not in ("llama3", "generic", "harmony"):
        assert accepts(source, f"I will look. {ONE[format]}")
        assert not accepts(source, f"I will look. {ONE[format].replace('Rome', 'Bonn')}")
        assert accepts(source, TWO[format])


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_is_allowed_before_a_call(format, is_open, tokenizer, accepts):
    marks = THINK
    source = call_grammar(REQUIRED, FORMATS[format], tokenizer, marks=marks, is_open=is_open)
    thought = f"{'' if is_open else '<think>'}\nRome? <b> {{}}\n</think>\n\n{ONE[format]}"
    assert accepts(source, thought)
    assert not accepts(source, thought.replace("Rome", "Bonn"))
    assert accepts(source, ONE[format]) is not is_open
    splitter = ReasoningSplitter(marks, is_open=is_open)
    assert calls_of(format, splitter.push(thought).text) == [("weather", {"city": "Rome"})]


def test_answer_may_match_the_schema_instead_of_a_call(tokenizer, accepts):
    source = call_grammar(ToolChoice(TOOLS, "auto"), FORMATS["hermes"], tokenizer, answer=CITY)
    assert accepts(source, '{"city": "Oslo"}')
    assert accepts(source, ONE["hermes"])
    assert not accepts(source, "Oslo")


def test_schema_answer_may_follow_reasoning(tokenizer, accepts):
    source = answer_grammar(CITY, tokenizer, marks=THINK)
    assert accepts(source, '<think>Rome or Oslo?</think>\n{"city": "Oslo"}')
    assert accepts(source, '{"city": "Oslo"}')
    assert not accepts(source, "<think>Rome or Oslo?</think>Oslo")


def test_small_model_cannot_call_forever(tokenizer, accepts):
    source = call_grammar(REQUIRED, FORMATS["generic"], tokenizer)
    assert accepts(source, "\n".join([NOON] * 16))
    assert not accepts(source, "\n".join([NOON] * 17))


@pytest.mark.parametrize("format", ["kimi", "command"])
def test_small_model_cannot_emit_digits_forever(format, tokenizer, accepts):
    source = call_grammar(REQUIRED, FORMATS[format], tokenizer)
    old, new = (":0", ":{}") if format == "kimi" else ('"0"', '"{}"')
    assert accepts(source, ONE[format].replace(old, new.format(1234)))
    assert not accepts(source, ONE[format].replace(old, new.format(12345)))


def test_too_large_tools_are_rejected_by_name(tokenizer):
    huge = Tool("huge", None, {"properties": {f"name{i}": {"type": "string"} for i in range(2000)}})
    with pytest.raises(RequestError, match="the tools and their JSON schemas"):
        call_grammar(ToolChoice((huge,), "required"), FORMATS["hermes"], tokenizer)


def test_unenforceable_schema_error_names_tool_and_property(tokenizer):
    wrong = {"type": "object", "properties": {"wool": {"$ref": "#/$defs/Missing"}}}
    choice = ToolChoice((WEATHER, Tool("shear", None, wrong)), "required")
    with pytest.raises(RequestError, match=r"the tool 'shear': .*'#/\$defs/Missing' at #/properties/wool") as reported:
        call_grammar(choice, FORMATS["hermes"], tokenizer)
    assert (reported.value.field, reported.value.code) == ("tools", "grammar")


def test_arguments_of_every_kind_are_written_one_by_one(tokenizer, accepts):
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
    }
    schema = {"properties": properties, "required": ["text"], "$defs": {"Tag": {"enum": ["a", "b"]}}}
    choice = ToolChoice((Tool("note", None, schema),), "required")
    source = call_grammar(choice, FORMATS["qwen_xml"], tokenizer)
    begin, end = "<tool_call>\n<function=note>\n", "</function>\n</tool_call>"
    text = "<parameter=text>\nany <b> text\n\nof lines\n</parameter>\n"
    more = "<parameter=count>\n3\n</parameter>\n", '<parameter=tags>\n["a"]\n</parameter>\n'
    assert accepts(source, begin + text + end)
    assert accepts(source, begin + text + "".join(more) + end)
    assert accepts(source, begin + text + more[1] + end)
    assert not accepts(source, begin + more[0] + end)
    assert not accepts(source, begin + text + more[0].replace("3", "x") + end)
    assert not accepts(source, begin + text + more[1].replace("a", "c") + end)
    source = call_grammar(choice, FORMATS["lfm2"], tokenizer)
    begin, end = "<|tool_call_start|>[note(", ")]<|tool_call_end|>"
    for body in ('text="a"', 'text="a", count=3', 'text="a", tags=["b"]', 'text="", count=-1, tags=[]'):
        assert accepts(source, begin + body + end)
    for body in ("", "count=3", 'text="a", count="b"', "text=a"):
        assert not accepts(source, begin + body + end)


def test_optional_python_arguments_need_no_first_one(tokenizer, accepts):
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    source = call_grammar(ToolChoice((Tool("f", None, schema),), "required"), FORMATS["lfm2"], tokenizer)
    for body in ("", "a=1", "b=2", "a=1, b=2"):
        assert accepts(source, f"<|tool_call_start|>[f({body})]<|tool_call_end|>")


@pytest.mark.parametrize("schema", [{"anyOf": []}, {"properties": {"a": {"type": "string", "pattern": "x"}}}])
def test_error_names_what_xml_tags_cannot_enforce(schema, tokenizer):
    with pytest.raises(RequestError, match=r"the schema of the tool 'f' has '(anyOf|pattern)'"):
        call_grammar(ToolChoice((Tool("f", None, schema),), "required"), FORMATS["glm"], tokenizer)


def test_channels_are_enforced_too(tokenizer, accepts):
    marks = find_reasoning("<|channel|><|message|>")
    thought = "<|channel|>analysis<|message|>Rome?<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>"
    source = call_grammar(REQUIRED, FORMATS["harmony"], tokenizer, marks=marks)
    for before in (thought, ""):
        assert accepts(source, before + ONE["harmony"])
        assert not accepts(source, f"{before}{final}Hello")
    source = call_grammar(ToolChoice(TOOLS, "auto"), FORMATS["harmony"], tokenizer, marks=marks)
    for before in (thought, ""):
        assert accepts(source, before + ONE["harmony"])
        assert accepts(source, f"{before}{final}Hello")
        assert not accepts(source, before + ONE["harmony"].replace("Rome", "Bonn"))
    source = answer_grammar(CITY, tokenizer, marks=marks)
    assert accepts(source, thought + final + '{"city": "Oslo"}')
    assert not accepts(source, thought + '{"city": "Oslo"}')


def test_tags_may_be_control_tokens():
    vocabulary = byte_vocabulary()
    tags = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
    types = [*vocabulary["tokenizer.ggml.token_type"], *[3] * len(tags)]
    vocabulary["tokenizer.ggml.tokens"] = [*vocabulary["tokenizer.ggml.tokens"], *tags]
    vocabulary["tokenizer.ggml.token_type"] = np.asarray(types, np.int32)
    tokenizer = Tokenizer.from_metadata(vocabulary)
    tool = Tool("note", None, {"properties": {"text": {"type": "string"}}, "required": ["text"]})
    source = call_grammar(ToolChoice((tool,), "required"), FORMATS["glm"], tokenizer)
    constraint = GrammarCompiler(tokenizer).compile("lark", source).start()
    call = "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>any\n<b></arg_value>\n</tool_call>"
    for token in tokenizer.encode(call, add_special=False):
        assert allowed_tokens(constraint)[token]
        constraint.accept(token)
    assert may_end(constraint)
    shown = {tokenizer.token_text(token) for token in marker_ids(tokenizer, markers_of(FORMATS["glm"]))}
    assert shown == set(tags)
