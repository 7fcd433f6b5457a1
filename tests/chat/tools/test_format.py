"""The format of calls is told by what a chat template contains."""

import pytest

from woolly.chat.message import read_messages
from woolly.chat.tools.format import find_format
from woolly.chat.tools.prompt import describe_tools, renders_tools
from woolly.chat.tools.tool import Tool

TEMPLATES = {
    "hermes": "{% if tools %}<tools>{{ tools }}</tools> within <tool_call></tool_call> XML tags{% endif %}",
    "llama3": '<|start_header_id|>{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}',
    "mistral": "{{ '[AVAILABLE_TOOLS]' + tools }}{{ '[TOOL_CALLS]' }}",
    "mistral_named": "{{ '[AVAILABLE_TOOLS]' + tools }}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}",
    "granite": "respond with <|tool_call|> followed by a JSON list of {{ tools }} used. <tool_call>",
    "harmony": "{{ tools }}<|start|>assistant<|channel|>final<|message|>",
    "seed": "{{ tools }}<seed:tool_call>\n<function=name>\n<parameter=key>",
    "minimax": '{{ tools }}<minimax:tool_call><invoke name="x">',
    "glm": "{{ tools }}<tool_call>{name}<arg_key>{key}</arg_key>",
    "qwen_xml": "{{ tools }}<tool_call>\n<function=name>\n<parameter=key>",
    "deepseek": "{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json",
    "deepseek_short": "{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>",
    "kimi": "{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>",
    "gemma": "{{ tools }}<|tool_call>call:name{}<tool_call|>",
    "command": "{{ tools }}<|START_ACTION|>[]<|END_ACTION|>",
    "lfm2": "{{ tools }}<|tool_call_start|>[]<|tool_call_end|>",
    "nemotron": "{{ tools }}<TOOLCALL>[]</TOOLCALL>",
    "generic": "{% for tool in tools %}{{ tool }}{% endfor %}",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_format_is_detected_from_the_template(name, template):
    assert find_format(template).name == name
    assert renders_tools(template)


def described_tools(messages, tools):
    return [message.to_template() for message in describe_tools(read_messages(messages), tools)]


def test_python_tag_belongs_to_llama_3():
    assert find_format("{{ tools }}{{ '<|python_tag|>' }}").name == "llama3"


def test_tools_are_described_when_the_template_has_no_tools():
    tool = Tool("clock", "Tells the time", None)
    assert not renders_tools("{% for message in messages %}{{ message.content }}{% endfor %}")
    described = described_tools([{"role": "user", "content": "Hi"}], [tool])
    assert [message["role"] for message in described] == ["system", "user"]
    assert '"name": "clock"' in described[0]["content"]
    assert "Tells the time" in described[0]["content"]
    described = described_tools([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], [tool])
    assert len(described) == 2
    assert described[0]["content"].startswith("Be brief.\n\n")


def test_calls_and_results_become_text_when_the_template_has_no_tools():
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": {"zone": "CET"}}}
    messages = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "clock", "tool_call_id": "1", "content": "noon"},
    ]
    assert described_tools(messages, ()) == [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": '{"name": "clock", "arguments": {"zone": "CET"}}'},
        {"role": "user", "content": "Result of clock: noon"},
    ]
