"""Messages and tools of Anthropic's clients become the neutral ones."""

import pytest

from woolly.sampling import SamplingParams
from woolly.serving.dialects.anthropic.bodies import MessagesBody
from woolly.serving.dialects.encrypted_reasoning import encode_reasoning
from woolly.serving.errors import ApiError


def chat(**fields):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    read = MessagesBody.model_validate(body)
    return read.to_chat(read.params(SamplingParams()))


def said(*messages, **fields):
    return [(one.role, one.content) for one in chat(messages=list(messages), **fields).messages]


def blocks(role, *content):
    return {"role": role, "content": list(content)}


def text(value, **more):
    return {"type": "text", "text": value, **more}


HI = {"role": "user", "content": "hi"}


def test_system_is_text_or_blocks_without_the_billing_line():
    assert said(HI, system="Be brief.")[0] == ("system", "Be brief.")
    billing = text("x-anthropic-billing-header: cc_version=1.f16;")
    system = [billing, text("One.", cache_control={"type": "ephemeral"}), text("Two.")]
    assert said(HI, system=system) == [("system", "One.\nTwo."), ("user", "hi")]
    assert said(HI, system=[billing]) == [("user", "hi")]


def test_later_system_message_stays_in_its_place():
    assert said(HI, blocks("system", text("Note."))) == [("user", "hi"), ("system", "Note.")]


def test_results_come_before_the_text_and_name_their_call():
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "ü"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("one"), text("two")]}
    wrong = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "bad", "is_error": True}
    read = chat(messages=[HI, blocks("assistant", use), blocks("user", text("go on"), result, wrong)]).messages
    assert read[1].calls[0].arguments == '{"a": "ü"}' and read[1].content == ""
    assert [(one.role, one.content) for one in read[2:]] == [
        ("tool", "one\ntwo"),
        ("tool", "Error: bad"),
        ("user", "go on"),
    ]
    assert read[2].call_id == "toolu_1"


def test_thinking_blocks_become_reasoning_from_text_or_signature():
    for block in (
        {"type": "thinking", "thinking": "Hm.", "signature": "of another server"},
        {"type": "thinking", "thinking": "", "signature": encode_reasoning("Hm.")},
    ):
        (_, answer, _) = chat(messages=[HI, blocks("assistant", block, text("Yes.")), HI]).messages
        assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")
    foreign = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    assert chat(messages=[HI, blocks("assistant", foreign, redacted, text("Yes.")), HI]).messages[1].reasoning is None


def test_thinking_is_off_by_default():
    assert chat().reasoning.effort == "none" == chat(thinking={"type": "disabled"}).reasoning.effort
    asked = chat(thinking={"type": "adaptive"}, output_config={"effort": "xhigh"})
    assert asked.variables == {} and asked.reasoning.effort == "xhigh"
    assert chat(thinking={"type": "enabled", "budget_tokens": 9}).reasoning.effort == "on"


def test_last_assistant_message_is_continued():
    assert chat(messages=[HI, {"role": "assistant", "content": "The"}]).continue_final
    assert not chat().continue_final


TOOL = {"name": "f", "input_schema": {"type": "object"}}


def test_tools_and_tool_choice():
    assert chat(tools=[]).tools.mode == "none" == chat(tools=[TOOL], tool_choice={"type": "none"}).tools.mode
    assert chat(tools=[TOOL]).tools.mode == "auto"
    one = chat(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True}).tools
    assert one.mode == "auto" and not one.is_parallel
    assert chat(tools=[TOOL], tool_choice={"type": "any"}).tools.mode == "required"
    assert chat(tools=[TOOL], tool_choice={"type": "tool", "name": "f"}).tools.only == {"f"}
    served = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert [tool.name for tool in chat(tools=[served, TOOL]).tools.tools] == ["f"]


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [blocks("assistant", IMAGE)]}, "messages.0.content.0"),
        (
            {"messages": [blocks("user", {"type": "document", "source": {"type": "base64"}})]},
            "messages.0.content.0.source",
        ),
        ({"messages": [blocks("user", {"type": "tool_result", "content": "x"})]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [blocks("assistant", {"type": "tool_use"})]}, "messages.0.content.0"),
        ({"system": [IMAGE]}, "system.0"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}, "output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(fields, param):
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_image_in_a_result_becomes_a_note():
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("seen"), IMAGE]}
    assert said(blocks("user", result)) == [("tool", "seen\n[an image, which this model cannot see]")]


def test_documents_and_search_results_are_text():
    document = {
        "type": "document",
        "title": "Wool",
        "source": {"type": "text", "media_type": "text/plain", "data": "Soft."},
    }
    found = {"type": "search_result", "source": "http://x", "title": "Sheep", "content": [text("White.")]}
    assert said(blocks("user", document, found)) == [("user", "Wool\nSoft.\nSheep\nWhite.")]
