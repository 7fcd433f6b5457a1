"""Built-in templates for well-known chat formats, with llama.cpp's names.

For models whose file has no template or a wrong one. Built-in templates only support system, user and assistant
messages with text, without tools and reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

# Strings around the text of each role (`…` is the text), and the start of an answer. `any` applies to all roles, with
# `@` for the role's name. A name with ! strips the text.
_TURNS: Mapping[str, Mapping[str, str]] = {
    "chatml": {"any": "<|im_start|>@\n…<|im_end|>\n", "begin": "<|im_start|>assistant\n"},
    "command-r!": {
        "system": "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>…<|END_OF_TURN_TOKEN|>",
        "user": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>…<|END_OF_TURN_TOKEN|>",
        "assistant": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>…<|END_OF_TURN_TOKEN|>",
        "begin": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    },
    "deepseek": {
        "system": "…",
        "user": "### Instruction:\n…\n",
        "assistant": "### Response:\n…\n<|EOT|>\n",
        "begin": "### Response:\n",
    },
    "deepseek2": {
        "system": "…\n\n",
        "user": "User: …\n\n",
        "assistant": "Assistant: …<｜end▁of▁sentence｜>",
        "begin": "Assistant:",
    },
    "deepseek3": {
        "system": "…\n\n",
        "user": "<｜User｜>…",
        "assistant": "<｜Assistant｜>…<｜end▁of▁sentence｜>",
        "begin": "<｜Assistant｜>",
    },
    "exaone3!": {
        "system": "[|system|]…[|endofturn|]\n",
        "user": "[|user|]…\n",
        "assistant": "[|assistant|]…[|endofturn|]\n",
        "begin": "[|assistant|]",
    },
    "falcon3": {"any": "<|@|>\n…\n", "begin": "<|assistant|>\n"},
    "glmedge": {"any": "<|@|>\n…", "begin": "<|assistant|>"},
    "granite": {
        "any": "<|start_of_role|>@<|end_of_role|>…<|end_of_text|>\n",
        "begin": "<|start_of_role|>assistant<|end_of_role|>",
    },
    "kimi-k2": {
        "system": "<|im_system|>system<|im_middle|>…<|im_end|>",
        "user": "<|im_user|>user<|im_middle|>…<|im_end|>",
        "assistant": "<|im_assistant|>assistant<|im_middle|>…<|im_end|>",
        "begin": "<|im_assistant|>assistant<|im_middle|>",
    },
    "llama3!": {
        "any": "<|start_header_id|>@<|end_header_id|>\n\n…<|eot_id|>",
        "begin": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    },
    "llama4!": {
        "any": "<|header_start|>@<|header_end|>\n\n…<|eot|>",
        "begin": "<|header_start|>assistant<|header_end|>\n\n",
    },
    "megrez": {"any": "<|role_start|>@<|role_end|>…<|turn_end|>", "begin": "<|role_start|>assistant<|role_end|>"},
    "mistral-v7": {
        "system": "[SYSTEM_PROMPT] …[/SYSTEM_PROMPT]",
        "user": "[INST] …[/INST]",
        "assistant": " …</s>",
        "begin": "",
    },
    "mistral-v7-tekken": {
        "system": "[SYSTEM_PROMPT]…[/SYSTEM_PROMPT]",
        "user": "[INST]…[/INST]",
        "assistant": "…</s>",
        "begin": "",
    },
    "openchat": {
        "system": "…<|end_of_turn|>",
        "user": "GPT4 Correct User: …<|end_of_turn|>",
        "assistant": "GPT4 Correct Assistant: …<|end_of_turn|>",
        "begin": "GPT4 Correct Assistant:",
    },
    "phi3": {"any": "<|@|>\n…<|end|>\n", "begin": "<|assistant|>\n"},
    "phi4": {"any": "<|im_start|>@<|im_sep|>…<|im_end|>", "begin": "<|im_start|>assistant<|im_sep|>"},
    "vicuna": {
        "system": "…\n\n",
        "user": "USER: …\n",
        "assistant": "ASSISTANT: …</s>\n",
        "begin": "ASSISTANT:",
    },
    "vicuna-orca": {
        "system": "SYSTEM: …\n",
        "user": "USER: …\n",
        "assistant": "ASSISTANT: …</s>\n",
        "begin": "ASSISTANT:",
    },
    "zephyr": {"any": "<|@|>\n…<|endoftext|>\n", "begin": "<|assistant|>\n"},
}

# Formats in which the system text is part of the following user turn.
_INSTRUCTIONS = (
    "{{% set turn = namespace(is_open={is_open}) %}}{before}{{% for message in messages %}}"
    "{{% if not turn.is_open %}}{{{{ {open} }}}}{{% set turn.is_open = true %}}{{% endif %}}"
    "{{% if message.role == 'system' %}}{{{{ {system} }}}}"
    "{{% elif message.role == 'user' %}}{{{{ {user} }}}}"
    "{{% else %}}{{{{ {assistant} }}}}{{% set turn.is_open = false %}}{{% endif %}}{{% endfor %}}"
)

_OTHERS = {
    "gemma": (
        "{% set first = namespace(text='') %}{% for message in messages %}"
        "{% if message.role == 'system' %}{% set first.text = first.text + message.content | trim %}{% else %}"
        "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}"
        "{% if first.text and message.role != 'assistant' %}{{ first.text + '\\n\\n' }}"
        "{% set first.text = '' %}{% endif %}{{ message.content | trim + '<end_of_turn>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
    ),
    **{
        name: _INSTRUCTIONS.format(
            is_open="false",
            before="",
            open=f"'{lead}[INST]{trail}'",
            system="message.content + '\\n\\n'",
            user=f"message.content + '{lead}[/INST]'",
            assistant=f"'{trail}' + {said} + '</s>'",
        )
        for name, lead, trail, said in (
            ("mistral-v1", " ", " ", "message.content"),
            ("mistral-v3", "", " ", "message.content | trim"),
            ("mistral-v3-tekken", "", "", "message.content"),
        )
    },
    **{
        name: _INSTRUCTIONS.format(
            is_open="true",
            before="{{ '[INST] ' }}",
            open=f"'{bos}[INST] '",
            system=system,
            user="message.content + ' [/INST]'",
            assistant="message.content + '</s>'",
        )
        for name, bos, system in (
            ("llama2", "", "message.content + '\\n'"),
            ("llama2-sys", "", "'<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n'"),
            ("llama2-sys-bos", "<s>", "'<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n'"),
        )
    },
}


def _quoted(text: str) -> str:
    """Return a Jinja string literal."""
    return json.dumps(text, ensure_ascii=False)


def _turns(name: str, row: Mapping[str, str]) -> str:
    """Return the Jinja source of a format with one turn per message."""
    shown = "message.content | trim" if name.endswith("!") else "message.content"

    def around(text: str) -> str:
        before, after = (_quoted(part).replace("@", '" + message.role + "') for part in text.split("…"))
        return f"{{{{ {before} + ({shown}) + {after} }}}}"

    if "any" in row:
        body = around(row["any"])
    else:
        first, second = around(row["system"]), around(row["user"])
        body = (
            f"{{% if message.role == 'system' %}}{first}{{% elif message.role == 'user' %}}{second}"
            f"{{% else %}}{around(row['assistant'])}{{% endif %}}"
        )
    begin = f"{{% if add_generation_prompt %}}{{{{ {_quoted(row['begin'])} }}}}{{% endif %}}"
    return f"{{% for message in messages %}}{body}{{% endfor %}}{begin}"


_SOURCES = {name.removesuffix("!"): _turns(name, row) for name, row in _TURNS.items()} | _OTHERS

TEMPLATE_NAMES = tuple(sorted(_SOURCES))


def builtin_template(name: str) -> str | None:
    """Return the Jinja source of a well-known format, or None if the name is not in TEMPLATE_NAMES."""
    return _SOURCES.get(name)
