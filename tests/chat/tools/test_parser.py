"""Calls are found in every format, and no split of the text changes what comes out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woolly.chat.events import CallArguments, CallStart, Text, gather
from woolly.chat.tools.format import FORMATS
from woolly.chat.tools.parser import ToolParser
from woolly.chat.tools.tool import Tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = (Tool("weather", None, SCHEMA), Tool("clock"), Tool("search-web"))
ROME = '{"city": "Rome"}'
CALL = f'{{"name": "weather", "arguments": {ROME}}}'
LLAMA = f'{{"name": "weather", "parameters": {ROME}}}'
CLOCK = '{"name": "clock", "arguments": {}}'
NESTED = '{"a": [{"b": "}]\\" </tool_call> {"}, -1.5e3], "é": null, "c": {"d": {}}}'

WEATHER = ("weather", ROME)
NO_CALLS = ()

# format, the answer, its text, its calls as (name, arguments)
CASES = [
    ("hermes", "Just text.", "Just text.", NO_CALLS),
    ("hermes", "", "", NO_CALLS),
    ("hermes", " \n", " \n", NO_CALLS),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", (WEATHER,)),
    ("hermes", f"<tool_call>{CALL}</tool_call>", "", (WEATHER,)),
    ("hermes", f"Let me see.\n\n<tool_call>\n{CALL}\n</tool_call>\n", "Let me see.", (WEATHER,)),
    (
        "hermes",
        f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CLOCK}\n</tool_call>",
        "",
        (WEATHER, ("clock", "{}")),
    ),
    ("hermes", f"<tool_call>\n{CALL}\n{CLOCK}\n</tool_call>", "", (WEATHER, ("clock", "{}"))),
    ("hermes", f"<tool_call>\n[{CALL}, {CLOCK}]\n</tool_call>", "", (WEATHER, ("clock", "{}"))),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\nDone  now.\n", "Done  now.\n", (WEATHER,)),
    ("hermes", f"A <tool_call>\n{CALL}\n</tool_call>\nB", "A\nB", (WEATHER,)),
    ("hermes", f'<tool_call>{{"name": "clock", "arguments": {NESTED}}}</tool_call>', "", (("clock", NESTED),)),
    ("hermes", f'<tool_call>{{"arguments": {ROME}, "name": "weather"}}</tool_call>', "", (WEATHER,)),
    ("hermes", '<tool_call>{"name": "clock"}</tool_call>', "", (("clock", "{}"),)),
    ("hermes", '<tool_call>{"name": "clock", "arguments": null}</tool_call>', "", (("clock", "{}"),)),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>', "", (WEATHER,)),
    (
        "hermes",
        f'<tool_call>{{"id": 7, "name": "weather", "arguments": {ROME}, "x": [1, {{}}]}}</tool_call>',
        "",
        (WEATHER,),
    ),
    (
        "hermes",
        f'<tool_call>{{"type": "function", "function": {{"name": "weather", "arguments": {ROME}}}}}</tool_call>',
        "",
        (WEATHER,),
    ),
    # A name that was not given is still a call where a mark says so: the client may know better.
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', "", (("other", "{}"),)),
    ("hermes", '<tool_call>{"name": "w\\u0065ather", "arguments": {}}</tool_call>', "", (("weather", "{}"),)),
    # What only looks like a call is text.
    ("hermes", "<tool_call>\nnothing\n</tool_call>", "<tool_call>\nnothing\n</tool_call>", NO_CALLS),
    ("hermes", '<tool_call>{"city": "Rome"}</tool_call>', '<tool_call>{"city": "Rome"}</tool_call>', NO_CALLS),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', NO_CALLS),
    ("hermes", '<tool_call>{"name": "x", oops', '<tool_call>{"name": "x", oops', NO_CALLS),
    ("hermes", "a <tool_", "a <tool_", NO_CALLS),
    ("hermes", "a < b <tool <<tool_call", "a < b <tool <<tool_call", NO_CALLS),
    ("hermes", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", NO_CALLS),
    ("hermes", f"<tool_call><tool_call>{CALL}</tool_call>", "<tool_call>", (WEATHER,)),
    # An answer that ends in the middle keeps what it has.
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Ro', "", (("weather", '{"city": "Ro'),)),
    ("hermes", f"<tool_call>{CALL}", "", (WEATHER,)),
    ("hermes", f"<tool_call>{CALL}\n</tool", "", (WEATHER,)),
    ("hermes", '<tool_call>{"name": "wea', '<tool_call>{"name": "wea', NO_CALLS),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {ROME} oops', "oops", (WEATHER,)),
    # Marks that a model left out: at the start of an answer, a tool that was given is called.
    ("hermes", CALL, "", (WEATHER,)),
    ("hermes", f"\n {CALL}", "", (WEATHER,)),
    ("hermes", '{"name": "Bob", "arguments": {}}', '{"name": "Bob", "arguments": {}}', NO_CALLS),
    ("hermes", '{"age": 3, "name": "clock"}', '{"age": 3, "name": "clock"}', NO_CALLS),
    ("hermes", f"Look: {CALL}", f"Look: {CALL}", NO_CALLS),
    ("hermes", "[1, 2]", "[1, 2]", NO_CALLS),
    ("llama3", LLAMA, "", (WEATHER,)),
    ("llama3", f"<|python_tag|>{LLAMA}", "", (WEATHER,)),
    ("llama3", f"{LLAMA}; {LLAMA}", "", (WEATHER, WEATHER)),
    ("llama3", f"{LLAMA}\n{CLOCK}", "", (WEATHER, ("clock", "{}"))),
    ("llama3", f'{{"type": "function", "name": "weather", "parameters": {ROME}}}', "", (WEATHER,)),
    ("llama3", f'{{"type": "function", "function": "weather", "parameters": {ROME}}}', "", (WEATHER,)),
    ("llama3", '{"answer": 42}', '{"answer": 42}', NO_CALLS),
    ("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", NO_CALLS),
    ("llama3", f"I call <|python_tag|>{LLAMA}", "I call", (WEATHER,)),
    ("mistral", f"[TOOL_CALLS][{CALL}]", "", (WEATHER,)),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CLOCK}]", "", (WEATHER, ("clock", "{}"))),
    ("mistral", f"Well. [TOOL_CALLS][{CALL}]", "Well.", (WEATHER,)),
    ("mistral", f"[{CALL}]", "", (WEATHER,)),
    ("mistral", "[TOOL_CALLS] and [more]", "[TOOL_CALLS] and [more]", NO_CALLS),
    ("mistral_named", f"[TOOL_CALLS]weather[ARGS]{ROME}", "", (WEATHER,)),
    (
        "mistral_named",
        f"[TOOL_CALLS]search-web[CALL_ID]abc123DEF[ARGS]{ROME}[TOOL_CALLS]clock[ARGS]{{}}",
        "",
        (("search-web", ROME), ("clock", "{}")),
    ),
    ("mistral_named", f"[TOOL_CALLS]weather{ROME}", "", (WEATHER,)),
    ("mistral_named", f"[TOOL_CALLS][{CALL}]", "", (WEATHER,)),
    ("mistral_named", "[TOOL_CALLS]a b c{}", "[TOOL_CALLS]a b c{}", NO_CALLS),
    ("granite", f"<|tool_call|>[{CALL}]", "", (WEATHER,)),
    ("granite", f"<|tool_call|> [{CALL}, {CLOCK}]", "", (WEATHER, ("clock", "{}"))),
    ("granite", f"<tool_call>[{CALL}]", "", (WEATHER,)),
    ("granite", f"<tool_call>\n{CALL}\n</tool_call>", "", (WEATHER,)),
    ("hermes", f"I call:\n```json\n{CALL}\n```", "I call:", (WEATHER,)),
    ("hermes", '```json\n{"name": "Bob", "arguments": {}}\n```', '```json\n{"name": "Bob", "arguments": {}}\n```', ()),
    ("generic", CALL, "", (WEATHER,)),
    ("generic", f"```json\n{CALL}\n```", "", (WEATHER,)),
    ("generic", f"```\n{CALL}\n```", "", (WEATHER,)),
    ("generic", f"[{CALL}, {CLOCK}]", "", (WEATHER, ("clock", "{}"))),
    ("generic", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', NO_CALLS),
    ("generic", "```python\nprint()\n```\n", "```python\nprint()\n```\n", NO_CALLS),
    ("generic", "``", "``", NO_CALLS),
]


def read(format, pieces, **options):
    ids = iter(range(1000))
    parser = ToolParser(FORMATS[format], TOOLS, make_id=lambda length: f"id{next(ids)}", **options)
    events = [event for piece in pieces for event in parser.push(piece)]
    return gather(events + parser.finish())


def simple(answer):
    text, calls = answer.text, answer.tool_calls
    return text, tuple((call.name, call.arguments) for call in calls)


@pytest.mark.parametrize(("format", "answer", "text", "calls"), CASES)
def test_text_and_calls_are_separated(format, answer, text, calls):
    assert simple(read(format, [answer])) == (text, calls)


@pytest.mark.parametrize(("format", "answer", "text", "calls"), CASES)
def test_splitting_at_any_character_changes_nothing(format, answer, text, calls):
    whole = read(format, [answer])
    assert read(format, answer) == whole
    for at in range(len(answer) + 1):
        assert read(format, [answer[:at], answer[at:]]) == whole


MARKS = sorted({mark for format in FORMATS.values() for pair in format.marks + format.loose for mark in pair if mark})
SCRAPS = ['{"name": "', 'weather", ', '"arguments": ', "[ARGS]", "weather", "</tool", *'"\\{}[],; \na<é']
PIECES = st.sampled_from([*MARKS, CALL, CLOCK, LLAMA, ROME, *SCRAPS])


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.lists(PIECES, max_size=14), st.data())
def test_chunk_boundaries_change_nothing_and_no_character_is_invented(format, pieces, data):
    answer = "".join(pieces)
    whole = read(format, [answer])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert read(format, parts) == whole
    text, calls = whole.text, whole.tool_calls
    if not calls:
        assert text == answer
    rest = iter(answer)
    assert all(character in rest for character in text), "the text is what the model wrote, in its order"


def test_arguments_stream_while_they_are_written():
    parser = ToolParser(FORMATS["hermes"], TOOLS)
    assert parser.push('Hi <tool_call>{"name": "weather", ') == [Text("Hi")]
    (start, arguments) = parser.push('"arguments": {"ci')
    assert isinstance(start, CallStart)
    assert (start.index, start.name) == (0, "weather")
    assert arguments == CallArguments(0, '{"ci')
    assert parser.push('ty": "Rome"}') == [CallArguments(0, 'ty": "Rome"}')]
    assert parser.push("}\n</tool_call>") == []
    assert parser.finish() == []


def test_text_that_cannot_be_a_call_is_not_buffered():
    parser = ToolParser(FORMATS["hermes"], TOOLS)
    assert parser.push("Hello <b") == [Text("Hello <b")]
    assert parser.push('>{"answer": ') == [Text('>{"answer":')]
    parser = ToolParser(FORMATS["generic"], TOOLS)
    assert parser.push('{"answer": 42') == [Text('{"answer": 42')]


def test_number_of_calls_is_limited():
    two = f"<tool_call>{CALL}</tool_call><tool_call>{CLOCK}</tool_call> and more"
    for pieces in ([two], two):
        assert simple(read("hermes", pieces, max_calls=1)) == ("", (WEATHER,))


def test_call_ids_have_the_format_the_template_accepts():
    def first(format, answer):
        return gather(ToolParser(FORMATS[format], TOOLS).push(answer)).tool_calls[0].id

    assert first("hermes", CALL).startswith("call_")
    assert len(first("mistral", f"[TOOL_CALLS][{CALL}]")) == 9
    assert first("mistral", f"[TOOL_CALLS][{CALL}]").isalnum()
    assert first("mistral_named", f"[TOOL_CALLS]weather[CALL_ID]abcDEF123[ARGS]{ROME}") == "abcDEF123"
    assert first("hermes", CALL) != first("hermes", CALL)


def test_text_of_only_markers_is_parsed_in_one_pass():
    # Each mark opens a string that never ends; reading it anew from each would take hours.
    answer = '<tool_call>{"a": "' * 20_000
    assert simple(read("hermes", [answer])) == (answer, ())


def test_parsed_arguments_equal_the_written_json():
    (call,) = read("hermes", [f'<tool_call>{{"name": "clock", "arguments": {NESTED}}}</tool_call>']).tool_calls
    assert json.loads(call.arguments) == json.loads(NESTED)
