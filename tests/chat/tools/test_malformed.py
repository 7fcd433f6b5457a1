"""Calls that are malformed, cut off, or contain their own markers: no character is lost."""

import json

import pytest

from tests.chat.tools.test_parser import read, simple

ROME = {"city": "Rome"}


def parts(format, answer):
    whole = read(format, [answer])
    assert read(format, answer) == whole
    return simple(whole)


def qwen(value, after="\n</parameter>\n</function>\n</tool_call>"):
    return f"<tool_call>\n<function=weather>\n<parameter=city>\n{value}{after}"


@pytest.mark.parametrize(
    "value",
    [
        "a </parameter> b",
        "</parameter>",
        "</parameter></parameter>",
        "a\n</parameter>\nb",
        "</function>",
        "</tool_call>",
        "<tool_call>\n<function=clock>",
        "x</parameter> </function y",
    ],
)
def test_value_may_contain_markers(value):
    text, ((name, arguments),) = parts("qwen_xml", qwen(value))
    assert (text, name, json.loads(arguments)) == ("", "weather", {"city": value})


@pytest.mark.parametrize(
    ("format", "answer", "text", "calls"),
    [
        # The name of an argument, of the arguments, or of a tag is misspelt.
        (
            "qwen_xml",
            "<tool_call>\n<function=weather>\n<parameter=city</parameter>\n</function>\n</tool_call>\nDone.",
            "<tool_call>\n<function=weather>\n<parameter=city</parameter>\n</function>\n</tool_call>\nDone.",
            [],
        ),
        (
            "qwen_xml",
            qwen("Rome", "\n</parameter>\n<parameter=days</parameter>\n</function>\n</tool_call>\nDone."),
            "<parameter=days</parameter>\n</function>\n</tool_call>\nDone.",
            [("weather", ROME)],
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "weather", "rguments": {"city": "Rome"}}\n</tool_call>\nDone.',
            '<tool_call>\n{"name": "weather", "rguments": {"city": "Rome"}}\n</tool_call>\nDone.',
            [],
        ),
        ("hermes", '<tool_call>\n{"name": "clock", "id": "1"}\n</tool_call>', "", [("clock", {})]),
        # The end of the call is missing.
        (
            "qwen_xml",
            qwen("Rome", "\n</parameter>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"),
            "",
            [("weather", ROME), ("clock", {})],
        ),
        ("qwen_xml", qwen("Rome", "\n</parameter>\nDone."), "Done.", [("weather", ROME)]),
        # A quote is missing.
        ("gemma", '<|tool_call>call:weather{city:<|"Rome<|"|>}<tool_call|>', None, None),
        ("lfm2", "<|tool_call_start|>[weather(city=Rome')]<|tool_call_end|>", None, None),
    ],
)
def test_malformed_part_stays(format, answer, text, calls):
    found, made = parts(format, answer)
    if text is None:
        assert "Rome" in found + "".join(arguments for _, arguments in made)
        return
    assert (found, [(name, json.loads(arguments)) for name, arguments in made]) == (text, calls)


@pytest.mark.parametrize("format", ["lfm2", "gemma", "qwen_xml", "glm"])
def test_value_that_is_cut_off_stays(format):
    begun = {
        "lfm2": "<|tool_call_start|>[weather(city='Rome",
        "gemma": '<|tool_call>call:weather{city:<|"|>Rome',
        "qwen_xml": "<tool_call><function=weather><parameter=city>Rome",
        "glm": "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>12Rome",
    }[format]
    text, ((name, arguments),) = parts(format, begun)
    assert (text, name) == ("", "weather") and arguments.endswith("Rome")


def test_object_at_the_start_of_a_line_is_a_call_if_there_are_no_markers():
    answer = 'I look.\n{"name": "weather", "arguments": {"city": "Rome"}}'
    text, ((name, arguments),) = parts("generic", answer)
    assert (text, name, json.loads(arguments)) == ("I look.", "weather", ROME)
    assert not parts("generic", answer.replace("weather", "other"))[1]
    assert not parts("generic", answer.replace("\n", " "))[1]
    assert not parts("hermes", answer)[1]
