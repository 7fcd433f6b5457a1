"""Messages of OpenAI's clients become what chat templates read."""

import pytest

from woolly.chat.message import name_results
from woolly.serving.dialects.completions.messages import Message, read_messages
from woolly.serving.dialects.completions.tools import ChoiceSpec, ToolSpec, read_choice
from woolly.serving.errors import ApiError


def plain(*messages):
    read = read_messages([Message.model_validate(message) for message in messages])
    return [message.to_template() for message in name_results(read)]


def call(arguments):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_arguments_are_objects_for_a_template():
    (message,) = plain({"role": "assistant", "tool_calls": [call('{"a": [1]}')]})
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert message["content"] == "", "templates add it to other text"


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"text"', "[" * 10000])
def test_non_object_arguments_are_unchanged(arguments):
    (message,) = plain({"role": "assistant", "tool_calls": [call(arguments)]})
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_results_get_the_name_of_their_call():
    _, result = plain(
        {"role": "assistant", "tool_calls": [call("{}")]}, {"role": "tool", "tool_call_id": "c1", "content": "x"}
    )
    assert result == {"role": "tool", "content": "x", "tool_call_id": "c1", "name": "f"}


def test_developers_are_systems_and_refusals_are_text():
    assert plain({"role": "developer", "content": "Be brief."})[0]["role"] == "system"
    assert plain({"role": "assistant", "content": None, "refusal": "No."})[0]["content"] == "No."
    parts = [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Yes."}]
    assert [part["text"] for part in plain({"role": "assistant", "content": parts})[0]["content"]] == ["No.", "Yes."]


def test_reasoning_of_earlier_answers_reaches_the_template():
    (message,) = plain({"role": "assistant", "content": "Red.", "reasoning_content": "Hm."})
    assert message["reasoning_content"] == "Hm."


TOOLS = [
    ToolSpec.model_validate({"type": "function", "function": {"name": name, "strict": name == "b"}}) for name in "ab"
]


def test_tool_choice_sets_what_may_and_must_be_called():
    assert read_choice(None, None, None).mode == "none"
    assert read_choice([], "auto", None).mode == "none"
    auto = read_choice(TOOLS, None, None)
    assert (auto.mode, auto.is_parallel, auto.is_enforced) == ("auto", True, True)
    assert not read_choice(TOOLS[:1], None, None).is_enforced
    assert not read_choice(TOOLS, "none", None).is_enforced
    named = read_choice(TOOLS, ChoiceSpec.model_validate({"type": "function", "function": {"name": "a"}}), True)
    assert (named.mode, [tool.name for tool in named.callable], named.is_parallel) == ("required", ["a"], False)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
    some = read_choice(TOOLS, ChoiceSpec.model_validate({"type": "allowed_tools", "allowed_tools": allowed}), False)
    assert (some.mode, [tool.name for tool in some.callable], some.is_parallel) == ("required", ["b"], False)


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], "required"),
        (TOOLS, "maybe"),
        (TOOLS, ChoiceSpec(type="function", function={"name": "c"})),
        (TOOLS, ChoiceSpec(type="custom", custom={"name": "c"})),
        (TOOLS, ChoiceSpec(type="allowed_tools", allowed_tools={"mode": "auto", "tools": []})),
        ([TOOLS[0], TOOLS[0]], "auto"),
        ([ToolSpec(type="function", function={"name": "no spaces"})], "auto"),
        ([ToolSpec(type="function", function={"name": "a", "parameters": {"type": "array"}})], "auto"),
        ([ToolSpec(type="web_search")], "auto"),
    ],
)
def test_unsupported_tool_choice_is_rejected(tools, choice):
    with pytest.raises(ApiError) as caught:
        read_choice(tools, choice, None)
    assert caught.value.status == 400
    assert caught.value.param.startswith("tool")
