"""A conversation is rendered once, and its text answers every question about the prompt."""

import re
from types import MappingProxyType

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import (
    ChatRequest,
    Message,
    Reasoning,
    ReasoningOptions,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
    format_chat,
)
from woolly.chat.message import FilePart, OtherPart, TextPart, read_messages
from woolly.errors import RequestError, TemplateError
from woolly.multimodal.inputs import FileInput
from woolly.sampling import SamplingParams
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TURNS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
OPEN = TURNS + "{% if add_generation_prompt %}<think>\n{% endif %}"
HI = (Message("user", "Hi"),)
CLOCK = Tool("clock", "Tells the time")
USAGE = Usage(1, 0, 1)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


class Counting(ChatTemplate):
    n_rendered = 0

    def render(self, /, messages, **options):
        self.n_rendered += 1
        return super().render(messages, **options)


@pytest.mark.parametrize("source", [TURNS, OPEN, "{{ tools }}<tool_call>" + TURNS])
@pytest.mark.parametrize("schema", [None, {"type": "object"}])
def test_template_is_rendered_once(source, schema, tokenizer):
    template = Counting(source)
    request = ChatRequest(HI, tools=ToolChoice.of([CLOCK], "required"), schema=schema)
    layout = format_chat(request, template, tokenizer)
    assert template.n_rendered == 1
    assert layout.made_of == "tools" and layout.params.lark
    layout.parser()
    assert template.n_rendered == 1


def test_unchanged_params_are_not_checked_again(tokenizer):
    request = ChatRequest(HI)
    assert format_chat(request, ChatTemplate(TURNS), tokenizer).params is request.params


def test_prompt_that_opens_reasoning_starts_in_reasoning(tokenizer):
    parser = format_chat(ChatRequest(HI), ChatTemplate(OPEN), tokenizer).parser()
    events = parser.push("Hm.</think>Yes.") + parser.finish("stop", USAGE)
    assert events[:2] == [Reasoning("Hm."), Text("Yes.")] and events[-1].reason == "stop"
    whole = ChatRequest(HI, reasoning=ReasoningOptions(is_split=False))
    parser = format_chat(whole, ChatTemplate(OPEN), tokenizer).parser()
    assert parser.push("Hm.</think>Yes.") == [Text("<think>\nHm.</think>Yes.")]


def test_tool_call_sets_the_finish_reason(tokenizer):
    request = ChatRequest(HI, tools=ToolChoice.of([CLOCK], None))
    parser = format_chat(request, ChatTemplate(TURNS), tokenizer).parser()
    events = parser.push('{"name": "clock", "arguments": {}}') + parser.finish("stop", USAGE)
    assert events[-1].reason == "tool_calls" and events[-1].usage == USAGE
    assert parser.finish("length", USAGE)[-1].reason == "length"


def test_template_and_request_errors_name_the_field(tokenizer, monkeypatch):
    fetched = []
    monkeypatch.setattr("woolly.multimodal.fetch.fetch", lambda *given, **_: fetched.append(given) or b"no file")
    template = ChatTemplate(TURNS)
    with pytest.raises(RequestError) as caught:
        format_chat(ChatRequest(HI, reasoning=ReasoningOptions("high")), template, tokenizer)
    assert caught.value.field == "reasoning_effort"
    file = (Message("user", (FilePart(FileInput(data="https://x/a.pdf")),)),)
    for refused, reason in (
        (ChatRequest(file, reasoning=ReasoningOptions("high"), allows_remote=True), "no such switch"),
        (ChatRequest((*file, Message("usr", "Hi")), allows_remote=True), "did you mean 'user'"),
    ):
        with pytest.raises((RequestError, TemplateError), match=reason):
            format_chat(refused, template, tokenizer)
    assert fetched == []
    with pytest.raises(RequestError, match=r"a\.pdf is not a PDF file"):
        format_chat(ChatRequest(file, allows_remote=True), template, tokenizer)
    assert len(fetched) == 1
    for more in ({"tools": ToolChoice.of([CLOCK], "required")}, {"schema": {"type": "object"}}):
        with pytest.raises(RequestError) as caught:
            ChatRequest(HI, SamplingParams(regex="x"), **more)
        assert caught.value.field == "regex"
    for tools, choice in (([CLOCK, CLOCK], None), ([CLOCK], "watch"), ([], "required"), ([{"nam": "x"}], None)):
        with pytest.raises(RequestError) as caught:
            ToolChoice.of(tools, choice)
        assert caught.value.field in ("tools", "tool_choice")


def test_messages_keep_the_fields_a_template_may_read(tokenizer):
    given = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "n": 1}], "mood": "good"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "clock", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    user, assistant, result = read_messages(given)
    assert user.content == (TextPart("a"), OtherPart({"type": "image", "n": 1}))
    assert user.to_template() == given[0]
    assert "content" not in assistant.to_template() and assistant.calls[0].arguments == '{"a": 1}'
    text = format_chat(ChatRequest((HI[0], assistant, result)), ChatTemplate(TURNS), tokenizer).text
    assert text.endswith('assistant: {"name": "clock", "arguments": {"a": 1}}\nuser: Result of clock: noon\n')
    with pytest.raises(TemplateError, match="message 1 needs a 'role'"):
        read_messages([{"content": "x"}])


def test_foreign_tool_call_ids_fit_a_template_that_needs_nine_characters(tokenizer):
    source = (
        "{{ tools }}[TOOL_CALLS]{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}({{ c.id }}){% endfor %}"
        "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{{ m.content }}{% endfor %}"
    )
    talk = (
        Message("user", "a"),
        Message("assistant", "", calls=(ToolCall("toolu_0123456789", "f", "{}"), ToolCall("abcdefgh1", "f", "{}"))),
        Message("tool", "x", call_id="toolu_0123456789"),
        Message("tool", "y", call_id="abcdefgh1"),
    )
    text = format_chat(ChatRequest(talk), ChatTemplate(source), tokenizer).text
    first, second, answered, other = re.findall(r"\((\w+)\)", text)
    assert first == answered and len(first) == 9 and second == other == "abcdefgh1"
    assert (
        format_chat(ChatRequest(talk[:2]), ChatTemplate(source), tokenizer).text == text[: text.index(f"({answered})x")]
    )


def test_schema_is_in_the_prompt_on_request(tokenizer):
    schema = {"type": "object", "properties": {"naïve": {"type": "integer"}}, "x-whitespace": "indented"}
    said = 'system: {}Answer with JSON that follows this schema:\n{{"type": "object", "properties": {{"naïve"'
    own, whole = {"schema": schema}, {"params": SamplingParams(json_schema=schema)}
    mapping = {"schema": MappingProxyType({**schema, "properties": MappingProxyType(schema["properties"])})}
    for more in (own, whole, mapping):
        for before, talk in (("", HI), ("Be brief.\n\n", (Message("system", "Be brief."), *HI))):
            reported = format_chat(ChatRequest(talk, tell_schema=True, **more), ChatTemplate(TURNS), tokenizer)
            assert reported.text.startswith(said.format(before)) and "x-" not in reported.text
            plain = format_chat(ChatRequest(talk, **more), ChatTemplate(TURNS), tokenizer)
            assert reported.params == plain.params and "schema" not in plain.text
    bound, same = (
        format_chat(ChatRequest(HI, **more), ChatTemplate(OPEN), tokenizer).params for more in (own, mapping)
    )
    assert bound == same and bound.lark is not None
    with pytest.raises(RequestError, match="tell_schema: there is no schema"):
        ChatRequest(HI, tell_schema=True)
