"""Messages of channels become reasoning, text and calls, and no split of the text changes what comes out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, Tool, ToolChoice, Usage, format_chat
from woolly.chat.channels import ChannelSplitter
from woolly.chat.events import gather
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TURNS = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
TEMPLATE = "{{ tools }}" + TURNS + "<|start|>assistant{# <|channel|> #}"
THOUGHT = "<|channel|>analysis<|message|>Hm <b>.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello."
CALL = '<|start|>assistant<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{"zone": "CET"}<|call|>'
ZONE = [("clock", '{"zone": "CET"}')]

# the answer, its reasoning, its text, its calls
CASES = [
    ("", "", "", []),
    ("Hello.", "", "Hello.", []),
    ("to do", "", "to do", []),
    ("to=x\nb", "", "to=x\nb", []),
    (THOUGHT + FINAL, "Hm <b>.", "Hello.", []),
    (THOUGHT + FINAL + "<|return|>", "Hm <b>.", "Hello.", []),
    (FINAL.removeprefix("<|start|>assistant"), "", "Hello.", []),
    (THOUGHT + CALL, "Hm <b>.", "", ZONE),
    (THOUGHT + CALL.removesuffix("<|call|>"), "Hm <b>.", "", ZONE),
    (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL, "Hm <b>.\n\nHm <b>.", "Hello.", []),
    ("<|channel|>commentary<|message|>I look.<|end|>" + CALL, "", "I look.", ZONE),
    ("<|channel|>commentary<|message|>I look.<|end|>" + FINAL, "", "I look.\n\nHello.", []),
    (' to=functions.clock<|channel|>commentary json<|message|>{"zone": "CET"}', "", "", ZONE),
    ("<|channel|>analysis to=functions.clock code<|message|>{}<|call|>", "", "", [("clock", "{}")]),
    (CALL + CALL, "", "", ZONE * 2),
    ("<|channel|>final<|message|>a < b <|x|>", "", "a < b <|x|>", []),
    ("<|channel|>analysis<|message|>cut", "cut", "", []),
    (THOUGHT + "<|start|>assistant<|chan", "Hm <b>.", "", []),
    ("<|channel|>commentary to=assistant" + THOUGHT + FINAL, "Hm <b>.", "Hello.", []),
    (CALL[:-16], "", "", [("clock", '{"zone"')]),
]


@pytest.fixture(scope="module")
def layout():
    tokenizer = Tokenizer.from_metadata(byte_vocabulary())
    request = ChatRequest((Message("user", "Hi"),), tools=ToolChoice.of([Tool("clock")], None))
    return format_chat(request, ChatTemplate(TEMPLATE), tokenizer)


def parts(layout, pieces):
    reader = layout.parser()
    events = [event for piece in pieces for event in reader.push(piece)]
    answer = gather(events + reader.finish("stop", Usage(1, 0, 1)))
    return answer.reasoning, answer.text, [(call.name, call.arguments) for call in answer.tool_calls]


@pytest.mark.parametrize(("answer", "reasoning", "text", "calls"), CASES)
def test_channels_are_separated_at_any_chunking(answer, reasoning, text, calls, layout):
    for pieces in ([answer], answer, *([answer[:at], answer[at:]] for at in range(len(answer)))):
        assert parts(layout, pieces) == (reasoning, text, calls)


def test_reasoning_that_is_not_split_keeps_its_markers():
    splitter = ChannelSplitter(is_split=False)
    assert splitter.push(THOUGHT + FINAL).text + splitter.finish().text == THOUGHT + "Hello."


def test_prompt_may_end_inside_reasoning():
    splitter = ChannelSplitter(is_open=True)
    assert splitter.push("Hm.<|end|>" + FINAL).reasoning == "Hm."


PIECES = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "to=functions.f",
    "analysis",
    "final",
    "a",
    "\n",
    "<|",
    "{}",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_chunk_boundaries_change_nothing(pieces):
    def read(pieces):
        splitter = ChannelSplitter()
        splits = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
        return "".join(s.reasoning for s in splits), "".join(s.text for s in splits)

    assert read(pieces) == read("".join(pieces)) == read(["".join(pieces)])
