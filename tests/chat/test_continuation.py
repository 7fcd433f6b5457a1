"""An answer continues the assistant's last message exactly where it ends, whatever the template makes of messages."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, Reasoning, Text, TextPart, Tool, ToolCall, ToolChoice, Usage, format_chat
from woolly.errors import RequestError
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

STRIPPING = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = """
{%- for m in messages %}
    {%- set content = m.content %}{%- set thought = m.reasoning_content if m.reasoning_content else '' %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if m.role == 'assistant' %}
        {{- '<|assistant|><think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') + '<|end|>' }}
    {%- else %}{{- '<|' + m.role + '|>' + content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>\\n' }}{%- endif %}"""
HI = Message("user", "Hi")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


def continued(template, tokenizer, *messages, **more):
    return format_chat(ChatRequest((HI, *messages), continue_final=True, **more), ChatTemplate(template), tokenizer)


@pytest.mark.parametrize("text", ["Hello", " Hello, \n", "", "<|end|>", "ends with mark {{ x }}"])
def test_prompt_ends_with_the_prefilled_text(tokenizer, text):
    layout = continued(STRIPPING, tokenizer, Message("assistant", text))
    assert layout.text == "<|user|>Hi<|end|><|assistant|>" + text
    assert layout.text == continued(STRIPPING, tokenizer, Message("assistant", (TextPart(text),))).text


def test_template_that_splits_reasoning_keeps_it_before_the_text(tokenizer):
    wanted = "<|user|>Hi<|end|><|assistant|><think>\nHm.\n</think>\n\nThe answer "
    for message in (
        Message("assistant", "The answer ", reasoning="Hm."),
        Message("assistant", "<think>\nHm.\n</think>\n\nThe answer "),
    ):
        layout = continued(THINKING, tokenizer, message)
        assert layout.text == wanted
        assert layout.parser().push("is 4.") == [Text("is 4.")]


def test_unfinished_reasoning_is_continued(tokenizer):
    for message in (Message("assistant", "", reasoning="Hm, 2"), Message("assistant", "<think>\nHm, 2")):
        layout = continued(THINKING, tokenizer, message)
        assert layout.text == "<|user|>Hi<|end|><|assistant|><think>\nHm, 2"
        reader = layout.parser()
        events = reader.push("+2</think>4.") + reader.finish("stop", Usage(1, 0, 1))
        assert events[:2] == [Reasoning("+2"), Text("4.")]


def test_without_continuation_a_turn_starts(tokenizer):
    request = ChatRequest((HI, Message("assistant", "Hello")))
    text = format_chat(request, ChatTemplate(STRIPPING), tokenizer).text
    assert text == "<|user|>Hi<|end|><|assistant|>Hello<|end|><|assistant|>"


def test_impossible_continuation_is_rejected(tokenizer):
    call = Message("assistant", None, calls=(ToolCall("1", "clock", "{}"),))
    for message, complaint in ((HI, "is of role 'user'"), (call, "holds calls")):
        template = "{{ tools }}" + STRIPPING
        with pytest.raises(RequestError, match=complaint) as caught:
            continued(template, tokenizer, message)
        assert caught.value.field == "continue_final"
    with pytest.raises(RequestError, match="does not show the last message"):
        continued("{{ messages[0].content }}", tokenizer, Message("assistant", "x"))
    with pytest.raises(RequestError, match="does not show the reasoning"):
        continued(STRIPPING, tokenizer, Message("assistant", "", reasoning="x"))
    for more in ({"schema": {"type": "object"}}, {"tools": ToolChoice.of([Tool("clock")], "required")}):
        with pytest.raises(RequestError, match="which would begin anew"):
            continued(STRIPPING, tokenizer, Message("assistant", "x"), **more)


@pytest.mark.parametrize("opening", ["", "<think>\n"])
def test_reasoning_that_the_template_drops_is_continued(tokenizer, opening):
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>OPENING{% endif %}"
    )
    layout = continued(source.replace("OPENING", opening), tokenizer, Message("assistant", "", reasoning="I am"))
    assert layout.text == "<|user|>Hi<|end|><|assistant|><think>\nI am" and layout.is_reasoning
    events = layout.parser().push("thinking</think>Yes.")
    assert events == [Reasoning("thinking"), Text("Yes.")]
