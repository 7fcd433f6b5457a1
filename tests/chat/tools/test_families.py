"""The formats of single families are read whole and in pieces, with text around them and cut off."""

import json

import pytest

from tests.chat.tools.test_parser import read, simple
from woolly.chat.events import CallArguments, CallStart
from woolly.chat.tools.format import FORMATS
from woolly.chat.tools.parser import ToolParser
from woolly.chat.tools.tool import Tool

ROME = {"city": "Rome"}
FULL = {"city": 'R"o\nme é', "days": 3}

# What opens and closes all calls, and one call of `weather` with FULL as arguments, and one of `clock` with none.
FUNCTION = """<function=weather>
<parameter=city>
R"o
me é
</parameter>
<parameter=days>
3
</parameter>
</function>"""
INVOKE = """<invoke name="weather">
<parameter name="city">R"o
me é</parameter>
<parameter name="days">3</parameter>
</invoke>"""
GLM = """<tool_call>weather
<arg_key>city</arg_key>
<arg_value>R"o
me é</arg_value>
<arg_key>days</arg_key><arg_value>3</arg_value>
</tool_call>"""
GEMMA = '<|"|>R"o\nme é<|"|>'
FULL_JSON = json.dumps(FULL, ensure_ascii=False)
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
K2 = "<|tool_call_begin|>functions.%s:0<|tool_call_argument_begin|>%s<|tool_call_end|>"
COHERE = '{"tool_call_id": "0", "tool_name": "%s", "parameters": %s}'
HARMONY = "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>"
CALLS = {
    "qwen_xml": (
        "",
        f"<tool_call>\n{FUNCTION}\n</tool_call>",
        "\n",
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        "",
    ),
    "seed": (
        "",
        f"<seed:tool_call>\n{FUNCTION}\n</seed:tool_call>",
        "\n",
        "<seed:tool_call><function=clock></function></seed:tool_call>",
        "",
    ),
    "minimax": ("<minimax:tool_call>\n", INVOKE, "\n", '<invoke name="clock">\n</invoke>', "\n</minimax:tool_call>"),
    "glm": ("", GLM, "\n", "<tool_call>clock\n</tool_call>", ""),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        V3 % ("weather", FULL_JSON),
        "\n",
        V3 % ("clock", "{}"),
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_short": (
        "<｜tool▁calls▁begin｜>",
        V31 % ("weather", FULL_JSON),
        "",
        V31 % ("clock", "{}"),
        "<｜tool▁calls▁end｜>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|>",
        K2 % ("weather", FULL_JSON),
        "",
        K2 % ("clock", "{}"),
        "<|tool_calls_section_end|>",
    ),
    "command": (
        "<|START_ACTION|>[\n    ",
        COHERE % ("weather", FULL_JSON),
        ",\n    ",
        COHERE % ("clock", "{}"),
        "\n]<|END_ACTION|>",
    ),
    "lfm2": (
        "<|tool_call_start|>[",
        """weather(city='R"o\\nme é', days=3)""",
        ", ",
        "clock()",
        "]<|tool_call_end|>",
    ),
    "nemotron": (
        "<TOOLCALL>[",
        f'{{"name": "weather", "arguments": {FULL_JSON}}}',
        ", ",
        '{"name": "clock", "arguments": {}}',
        "]</TOOLCALL>",
    ),
    "gemma": (
        "",
        f"<|tool_call>call:weather{{city:{GEMMA},days:3}}<tool_call|>",
        "",
        "<|tool_call>call:clock{}<tool_call|>",
        "",
    ),
    "harmony": ("", HARMONY % ("weather", FULL_JSON), "", HARMONY % ("clock", "{}"), ""),
}


def loaded(answer):
    text, calls = simple(answer)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def in_pieces(format, answer):
    """Reads an answer whole, by letters and split at every place, which must not differ."""
    whole = read(format, [answer])
    assert read(format, answer) == whole
    for at in range(len(answer) + 1):
        assert read(format, [answer[:at], answer[at:]]) == whole
    return whole


@pytest.mark.parametrize("format", sorted(CALLS))
def test_one_and_two_calls_are_found_with_text_around(format):
    begin, weather, between, clock, end = CALLS[format]
    one = begin + weather + end
    assert loaded(in_pieces(format, one)) == ("", [("weather", FULL)])
    two = begin + weather + between + clock + end
    assert loaded(in_pieces(format, two)) == ("", [("weather", FULL), ("clock", {})])
    assert loaded(in_pieces(format, f"I look.\n\n{two}\nDone.")) == (
        "I look.\nDone.",
        [("weather", FULL), ("clock", {})],
    )


@pytest.mark.parametrize("format", sorted(CALLS))
def test_truncated_call_keeps_its_content_and_markers_are_no_text(format):
    begin, weather, _, _, end = CALLS[format]
    answer = begin + weather + end
    for length in range(len(answer)):
        text, calls = simple(read(format, [answer[:length]]))
        if calls:
            assert text == "" and calls[0][0] == "weather"
            assert json.dumps(FULL).startswith(calls[0][1][:1])
        else:
            assert text == answer[:length]


@pytest.mark.parametrize("format", sorted(CALLS))
def test_markers_without_a_call_are_text(format):
    begin = CALLS[format][0] or FORMATS[format].marks[0][0]
    for rest in ("", " nothing", "<b>bold</b>", " 1, 2 "):
        answer = f"See {begin}{rest}"
        assert loaded(in_pieces(format, answer)) == (answer, [])


@pytest.mark.parametrize("format", ["qwen_xml", "glm", "minimax", "seed"])
def test_xml_strings_stream_while_they_are_written(format):
    parser = ToolParser(FORMATS[format], [Tool("weather", None, {"properties": {"city": {"type": "string"}}})])
    answer = "".join(CALLS[format][:2])
    at = answer.index("e é")
    start, arguments = parser.push(answer[:at])
    assert isinstance(start, CallStart) and start.name == "weather"
    assert arguments == CallArguments(0, '{"city": "R\\"o\\nm')
    assert parser.push("e") == [CallArguments(0, "e")]


VALUES = [
    ("3", {"type": "integer"}, 3),
    ("3", {"type": "string"}, "3"),
    ("3", None, 3),
    ("three", {"type": "integer"}, "three"),
    ("True", {"type": "boolean"}, True),
    ("null", {"type": ["string", "null"]}, None),
    ("12", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "12"),
    ('["a", 1]', {"type": "array"}, ["a", 1]),
    ('{"a": "</b>"}', {"type": "object"}, {"a": "</b>"}),
    ("NaN", {"type": "number"}, "NaN"),
    ("1", {"enum": ["1", "2"]}, "1"),
    ("", {"type": "string"}, ""),
    ("a </parameter b", {"type": "string"}, "a </parameter b"),
]


@pytest.mark.parametrize(("raw", "schema", "value"), VALUES)
def test_schema_determines_the_value_type(raw, schema, value):
    tool = Tool("f", None, {"properties": {"x": schema} if schema else {}})
    for format, before, after in (("qwen_xml", "<function=f><parameter=x>\n", "\n</parameter></function>"),):
        parser = ToolParser(FORMATS[format], [tool])
        events = parser.push(f"<tool_call>{before}{raw}{after}</tool_call>")
        assert json.loads("".join(e.text for e in events if isinstance(e, CallArguments))) == {"x": value}


def test_missing_marker_is_tolerated():
    _, calls = loaded(in_pieces("qwen_xml", f"Well.\n{FUNCTION}\n</tool_call>"))
    assert calls == [("weather", FULL)]


def test_interrupted_call_is_closed():
    answer = "<tool_call><function=weather><parameter=days>3</parameter>oops"
    assert loaded(in_pieces("qwen_xml", answer)) == ("oops", [("weather", {"days": 3})])
    assert loaded(in_pieces("lfm2", "<|tool_call_start|>[weather(days=3, 4)]")) == (")]", [("weather", {"days": 3})])


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("'a, (b'", "a, (b"),
        ("[1, 'x', {'k': None}]", [1, "x", {"k": None}]),
        ("true", True),
        ("False", False),
        ("Rome", "Rome"),
    ],
)
def test_python_literals_are_parsed(raw, value):
    for mark, end in (("<|tool_call_start|>", "<|tool_call_end|>"), ("", "")):
        answer = f"{mark}[weather(a={raw}, b=1)]{end}"
        assert loaded(in_pieces("lfm2", answer)) == ("", [("weather", {"a": value, "b": 1})])
    assert loaded(in_pieces("lfm2", f"[other(a={raw})]")) == (f"[other(a={raw})]", [])


def test_call_id_written_by_the_model_is_kept():
    parser = ToolParser(FORMATS["kimi"], [Tool("clock")])
    (start, _) = parser.push(K2 % ("clock", "{}"))
    assert (start.id, start.name) == ("functions.clock:0", "clock")


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('{a:<|"|>x, {y}<|"|>,b:[1,true,null]}', {"a": "x, {y}", "b": [1, True, None]}),
        ('{a:{b:{c:-1.5},d:[]}, e : <|"|><|<|"|>}', {"a": {"b": {"c": -1.5}, "d": []}, "e": "<|"}),
        ('{"a": "x\\"}", "b": 2}', {"a": 'x"}', "b": 2}),
        ('{<|"|>a b<|"|>:two words}', {"a b": "two words"}),
    ],
)
def test_objects_without_json_quotes_are_parsed(raw, value):
    answer = f"<|tool_call>call:weather{raw}<tool_call|>"
    assert loaded(in_pieces("gemma", answer)) == ("", [("weather", value)])
