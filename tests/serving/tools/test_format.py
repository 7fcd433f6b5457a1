"""The format of calls is told by what a chat template contains."""

import pytest

from woolly.serving.tools import Tool, describe_tools, find_format, knows_tools

TEMPLATES = {
    "hermes": "{% if tools %}<tools>{{ tools }}</tools> within <tool_call></tool_call> XML tags{% endif %}",
    "llama3": '<|start_header_id|>{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}',
    "mistral": "{{ '[AVAILABLE_TOOLS]' + tools }}{{ '[TOOL_CALLS]' }}",
    "mistral_named": "{{ '[AVAILABLE_TOOLS]' + tools }}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}",
    "granite": "respond with <|tool_call|> followed by a JSON list of {{ tools }} used. <tool_call>",
    "generic": "{% for tool in tools %}{{ tool }}{% endfor %}",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_a_template_shows_its_format(name, template):
    assert find_format(template).name == name
    assert knows_tools(template)


def test_python_tags_are_of_llama_3():
    assert find_format("{{ tools }}{{ '<|python_tag|>' }}").name == "llama3"


def test_tools_are_described_where_a_template_knows_none():
    tool = Tool("clock", "Tells the time", None)
    assert not knows_tools("{% for message in messages %}{{ message.content }}{% endfor %}")
    described = describe_tools([{"role": "user", "content": "Hi"}], [tool])
    assert [message["role"] for message in described] == ["system", "user"]
    assert '"name": "clock"' in described[0]["content"]
    assert "Tells the time" in described[0]["content"]
    described = describe_tools([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], [tool])
    assert len(described) == 2
    assert described[0]["content"].startswith("Be brief.\n\n")


def test_calls_and_results_become_text_where_a_template_knows_none():
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": {"zone": "CET"}}}
    messages = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "clock", "tool_call_id": "1", "content": "noon"},
    ]
    assert describe_tools(messages, ()) == [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": '{"name": "clock", "arguments": {"zone": "CET"}}'},
        {"role": "user", "content": "Result of clock: noon"},
    ]
