"""Self-written templates in the styles of the wild render exactly."""

from datetime import datetime

import pytest

from woolly.errors import TemplateError
from woolly.templates.template import ChatTemplate

SYSTEM = {"role": "system", "content": "Be kind."}
HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi!"}
MORE = {"role": "user", "content": "More?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call12345", "function": {"name": "weather", "arguments": {"city": "Århus"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "call12345", "content": "21°"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the <weather>.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
TOOL_JSON = (
    '{"type": "function", "function": {"name": "weather", "description": "Tells the <weather>.", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
)

CHATML_STYLE = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA_STYLE = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|header|>system<|/header|>\\n\\n' }}
{%- if tools is not none %}
    {{- 'Tools:\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n' }}{%- endfor %}
{%- endif %}
{{- system + '<|eot|>' }}
{%- for message in messages %}
    {%- if 'tool_calls' in message and message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|header|>assistant<|/header|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|eot|>' }}
    {%- elif message.role in ('tool', 'ipython') %}
        {{- '<|header|>ipython<|/header|>\\n\\n' + message.content|string + '<|eot|>' }}
    {%- else %}
        {{- '<|header|>' + message.role + '<|/header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{%- endif %}
"""

MISTRAL_STYLE = """
{%- set ns = namespace(index=0) %}
{%- set rest = messages | rejectattr('role', 'equalto', 'system') | list %}
{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join %}
{%- for message in rest %}
    {%- if (message.role == 'user' or (message.role == 'assistant' and message.tool_calls is undefined)) %}
        {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {%- if system and loop.last %}
            {{- '[INST] ' + system + '\\n\\n' + message.content + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message.content + '[/INST]' }}
        {%- endif %}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('Tool call IDs need 9 characters') }}{%- endif %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}{{- ', "id": "' + call.id + '"}' }}{{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string | tojson + '}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GRANITE_STYLE = """
{%- if messages[0]['role'] != 'system' %}
    {%- set system = "Today's Date: " + strftime_now('%B %d, %Y') + '.' %}
    {%- if documents %}{%- set system = system + ' Use the documents.' %}{%- endif %}
    {%- set messages = [{'role': 'system', 'content': system}] + messages %}
{%- endif %}
{%- for message in messages %}
    {{- '<|role|>' + message.role + '<|/role|>' + message.content + '<|end|>\\n' }}
    {%- if loop.first and documents %}
        {%- for document in documents %}
            {{- '<|role|>document ' + document['doc_id'] | string + '<|/role|>\\n' + document['text'] + '<|end|>\\n' }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|role|>assistant' }}
    {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|/role|>' }}
{%- endif %}
"""

QWEN_STYLE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else '') }}
    {{- '\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thought and loop.index0 > ns.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

GEMMA_STYLE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set prefix = '' -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

DEEPSEEK_STYLE = """{% set ns = namespace(is_first=true, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}
{%- set ns.system_prompt = ns.system_prompt + ('' if ns.is_first else '\\n\\n') + message['content'] %}
{%- set ns.is_first = false %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}
{%- set content = message['content'] %}{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}
{%- endif %}{{ '<|Assistant|>' + content + eos_token }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""

COMMAND_STYLE = """{%- macro document(index, doc) %}Document: {{ index }}
{% for key, value in doc.items() %}
{{ key | capitalize }}: {{ value }}
{% endfor %}{% endmacro %}
{%- if messages[0].role == 'system' %}{% set preamble = messages[0].content %}{% set turns = messages[1:] %}
{%- else %}{% set preamble = 'Default.' %}{% set turns = messages %}{% endif %}
{{- bos_token }}<|SYSTEM|>{{ preamble }}
{%- for doc in documents or [] %}

{{ document(loop.index0, doc) }}{% endfor %}<|END|>
{%- for message in turns %}
{{- '<|' ~ {'user': 'USER', 'assistant': 'CHATBOT'}[message.role] ~ '|>' ~ message.content | trim ~ '<|END|>' }}
{%- endfor %}{% if add_generation_prompt %}<|CHATBOT|>{% endif %}"""

PHI_STYLE = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)


def render(source, messages, **options):
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **options)


@pytest.mark.parametrize("source", [CHATML_STYLE, None], ids=["chatml", "fallback"])
def test_chatml_turns(source):
    expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert render(source, [SYSTEM, HELLO]) == expected
    assert render(source, [HI], add_generation_prompt=False) == "<|im_start|>assistant\nHi!<|im_end|>\n"


def test_llama_turns_with_a_tool_call():
    text = render(LLAMA_STYLE, [SYSTEM, HELLO, CALL, RESULT], tools=TOOLS)
    assert text.startswith('<s><|header|>system<|/header|>\n\nTools:\n{\n    "type": "function",\n    "function": {\n')
    assert '"description": "Tells the <weather>."' in text
    assert text.endswith(
        "}\nBe kind.<|eot|><|header|>user<|/header|>\n\nHello<|eot|>"
        '<|header|>assistant<|/header|>\n\n{"name": "weather", "parameters": {"city": "Århus"}}<|eot|>'
        "<|header|>ipython<|/header|>\n\n21°<|eot|><|header|>assistant<|/header|>\n\n"
    )


def test_mistral_turns_with_a_tool_call():
    assert render(MISTRAL_STYLE, [SYSTEM, HELLO, HI, MORE]) == (
        "<s>[INST] Hello[/INST] Hi!</s>[INST] Be kind.\n\nMore?[/INST]"
    )
    assert render(MISTRAL_STYLE, [HELLO, CALL, RESULT], tools=TOOLS) == (
        "<s>[INST] Hello[/INST]"
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Århus"}, "id": "call12345"}]</s>'
        '[TOOL_RESULTS] {"content": "21°"}[/TOOL_RESULTS]'
    )


def test_template_that_rejects_the_conversation_says_why():
    with pytest.raises(TemplateError, match=r"rejects .*: Conversation roles must alternate user/assistant/"):
        render(MISTRAL_STYLE, [HELLO, HELLO])


def test_granite_turns_with_documents_and_the_date():
    today = datetime.now().strftime("%B %d, %Y")
    text = render(GRANITE_STYLE, [HELLO], documents=[{"doc_id": 7, "text": "Facts."}], controls={"length": "short"})
    assert text == (
        f"<|role|>system<|/role|>Today's Date: {today}. Use the documents.<|end|>\n"
        "<|role|>document 7<|/role|>\nFacts.<|end|>\n<|role|>user<|/role|>Hello<|end|>\n"
        '<|role|>assistant {"length": "short"}<|/role|>'
    )


def test_qwen_turns_with_tools():
    assert render(QWEN_STYLE, [SYSTEM, HELLO, CALL, RESULT], tools=TOOLS) == (
        f"<|im_start|>system\nBe kind.\n\n<tools>\n{TOOL_JSON}\n</tools><|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Århus"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n21°\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen_turns_drop_reasoning_before_the_last_question():
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
    assert render(QWEN_STYLE, [HELLO, thought, MORE], enable_thinking=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nMore?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert "<think>\nhm\n</think>\n\nYes." in render(QWEN_STYLE, [HELLO, thought])


def test_gemma_turns_merge_the_system_message_and_rename_the_assistant():
    assert render(GEMMA_STYLE, [SYSTEM, HELLO, HI, MORE]) == (
        "<s><start_of_turn>user\nBe kind.\n\nHello<end_of_turn>\n<start_of_turn>model\nHi!<end_of_turn>\n"
        "<start_of_turn>user\nMore?<end_of_turn>\n<start_of_turn>model\n"
    )


def test_deepseek_turns():
    thought = {"role": "assistant", "content": "<think>hm</think>Yes."}
    assert render(DEEPSEEK_STYLE, [SYSTEM, SYSTEM, HELLO, thought, MORE]) == (
        "<s>Be kind.\n\nBe kind.<|User|>Hello<|Assistant|>Yes.</s><|User|>More?<|Assistant|><think>\n"
    )


def test_command_turns_with_documents():
    assert render(COMMAND_STYLE, [HELLO, HI], documents=[{"title": "T", "text": "Facts."}]) == (
        "<s><|SYSTEM|>Default.\nDocument: 0\nTitle: T\nText: Facts.\n<|END|>"
        "<|USER|>Hello<|END|><|CHATBOT|>Hi!<|END|><|CHATBOT|>"
    )


def test_phi_turns_with_generation_blocks():
    assert render(PHI_STYLE, [SYSTEM, HELLO, HI], add_generation_prompt=False) == (
        "<|system|>\nBe kind.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\nHi!<|end|>\n</s>"
    )


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def test_parts_reach_a_template_that_supports_them():
    message = {"role": "user", "content": [{"type": "image"}, *parts(" a ", "b")]}
    assert "<start_of_turn>user\n<image>ab<end_of_turn>" in render(GEMMA_STYLE, [message])


@pytest.mark.parametrize("source", [CHATML_STYLE, LLAMA_STYLE, MISTRAL_STYLE, QWEN_STYLE, DEEPSEEK_STYLE, None])
def test_text_parts_are_joined_for_a_text_only_template(source):
    joined = render(source, [{"role": "user", "content": "one\ntwo"}])
    assert render(source, [{"role": "user", "content": parts("one", "two")}]) == joined


def test_non_text_part_is_rejected_by_a_text_only_template():
    message = {"role": "user", "content": [*parts("look"), {"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(TemplateError, match=r"message 2 holds a part of type 'image_url'"):
        render(QWEN_STYLE, [HELLO, message])


def test_text_is_wrapped_for_a_parts_only_template():
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.type }} {{ p.text }}]{% endfor %}{% endfor %}"
    assert render(source, [HELLO, {"role": "user", "content": parts("a", "b")}]) == "[text Hello][text a][text b]"
