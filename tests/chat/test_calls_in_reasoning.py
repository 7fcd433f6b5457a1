"""A call at the end of reasoning that the model has not ended is a call; a call that more text follows is not."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, Tool, ToolChoice, Usage, format_chat, gather
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TEMPLATE = (
    "{{ tools }}{# <tool_call> #}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<think>\n{% endif %}"
)
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "CET"}}\n</tool_call>'
CALLS = [("clock", '{"zone": "CET"}')]
INNER = CALL.replace("CET", "</think>")
OTHER = CALL.replace("clock", "function_name")


@pytest.fixture(scope="module")
def layout():
    tools = ToolChoice.of([Tool("clock")], None)
    tokenizer = Tokenizer.from_metadata(byte_vocabulary())
    return format_chat(ChatRequest((Message("user", "Hi"),), tools=tools), ChatTemplate(TEMPLATE), tokenizer)


def parts(layout, pieces):
    parser = layout.parser()
    events = [event for piece in pieces for event in parser.push(piece)]
    last = parser.finish("stop", Usage(1, 0, 1))
    answer = gather(events + last)
    return answer.reasoning, answer.text, [(call.name, call.arguments) for call in answer.tool_calls], last[-1].reason


@pytest.mark.parametrize(
    ("answer", "reasoning", "text", "calls"),
    [
        (CALL, "", "", CALLS),
        (f"I look.\n{CALL}\n", "I look.", "", CALLS),
        (f"I look.\n{CALL}\n{CALL}", "I look.", "", CALLS * 2),
        (f"I look.\n{INNER}", "I look.", "", [("clock", '{"zone": "</think>"}')]),
        (f"I could write\n{CALL}\nor not.</think>No.", f"I could write\n{CALL}\nor not.", "No.", []),
        (f"a\n{CALL}</think>{CALL}", f"a\n{CALL}", "", CALLS),
        (f"a\n{CALL}</think>Yes.", f"a\n{CALL}", "Yes.", []),
        (f"As in `{CALL}`", f"As in `{CALL}`", "", []),
        (f"The example is\n{OTHER}", f"The example is\n{OTHER}", "", []),
        ("a\n<tool_call>\nb</think>c", "a\n<tool_call>\nb", "c", []),
        ("a\n<tool_c", "a\n<tool_c", "", []),
        ('{"name": "clock", "arguments": {}}', '{"name": "clock", "arguments": {}}', "", []),
        ("</think>" + CALL, "", "", CALLS),
    ],
)
def test_call_in_reasoning_counts_at_its_end(answer, reasoning, text, calls, layout):
    expected = (reasoning, text, calls, "tool_calls" if calls else "stop")
    for pieces in ([answer], answer, *([answer[:at], answer[at:]] for at in range(len(answer)))):
        assert parts(layout, pieces) == expected


def test_interrupted_call_in_reasoning_keeps_its_arguments(layout):
    cut = f"I look.\n{CALL[: CALL.index('T')]}"
    assert parts(layout, [cut])[:3] == ("I look.", "", [("clock", '{"zone": "CE')])
