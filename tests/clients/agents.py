"""Requests with the fields and sizes of agents' real ones; the texts are our own."""

import copy
import json


def filler(n: int) -> str:
    """Returns a text of n characters, whose words are tokens of the tiny model, as words are of a real one."""
    return ("sheep" + " sheep" * (n // 6))[:n]


def _tool(name: str, n_text: int, **properties) -> dict:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties)[:1],
        "additionalProperties": False,
    }
    return {"name": name, "description": filler(n_text), "input_schema": schema}


def _text(n: int, **more) -> dict:
    return {"type": "string", "description": filler(n), **more}


_BASH = {
    "command": _text(30),
    "timeout": {"type": "number", "description": filler(70)},
    "description": _text(926),
    "run_in_background": {"type": "boolean", "description": filler(181), "default": False},
}
_EDIT = {
    "file_path": _text(40, pattern="^/"),
    "old_string": _text(20),
    "new_string": _text(60),
    "replace_all": {"type": "boolean", "default": False},
}
_LIST = {
    "items": {
        "type": "array",
        "minItems": 1,
        "maxItems": 4,
        "items": {"type": "object", "properties": {"text": _text(30, maxLength=256)}, "required": ["text"]},
    },
    "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    "kind": {"anyOf": [{"type": "string", "enum": ["one", "two"]}, {"type": "null"}]},
}
_CACHED = {"cache_control": {"type": "ephemeral"}}

CLAUDE_CODE_HEADERS = {
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,a-beta-that-nobody-knows-2099-01-01",
    "anthropic-version": "2023-06-01",
    "x-app": "cli",
}

CLAUDE_CODE_FIRST = {
    "model": "claude-sonnet-9",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": filler(556)},
                {"type": "text", "text": filler(576)},
                {"type": "text", "text": "say hi with bash"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": filler(9036), **_CACHED}]},
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325.f16; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": filler(62), **_CACHED},
        {"type": "text", "text": filler(5541), **_CACHED},
    ],
    "tools": [
        _tool("Bash", 1934, **_BASH),
        _tool("Edit", 360, **_EDIT),
        *(_tool(f"Task{i}", 1800, **_LIST) for i in range(10)),
    ],
    "metadata": {"user_id": filler(150)},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}


def claude_code_second(answer: list[dict]) -> dict:
    """Returns the second turn: the blocks of the first answer, and the result of its call."""
    body = copy.deepcopy(CLAUDE_CODE_FIRST)
    system = body["messages"][1]
    system["content"] = system["content"][0]["text"]  # the agent sends the same text in another form
    (call,) = (block for block in answer if block["type"] == "tool_use")
    result = {"tool_use_id": call["id"], "type": "tool_result", "content": "hi", "is_error": False, **_CACHED}
    body["messages"] += [{"role": "assistant", "content": answer}, {"role": "user", "content": [result]}]
    body["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.325.6de; cc_entrypoint=sdk-cli;"
    return body


def _functions(sizes: list[int], shell: str, arguments: dict, **more) -> list[dict]:
    """Returns functions with descriptions of these lengths, the first of them the shell."""
    first = {"name": shell, "description": filler(sizes[0]), **more, "parameters": _schema(**arguments)}
    others = (
        {"name": f"tool_{i}", "description": filler(n), **more, "parameters": _schema(**_LIST, path=_text(120))}
        for i, n in enumerate(sizes[1:])
    )
    return [first, *others]


def _schema(**properties) -> dict:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties)[:1],
        "additionalProperties": False,
    }


def _of_chat(functions: list[dict]) -> list[dict]:
    return [{"type": "function", "function": function} for function in functions]


_COMMAND = {"command": _text(38), "description": _text(185), "timeout": {"type": "number", "minimum": 1}}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}

OPENCODE_TITLE = {
    "model": "gpt-9",
    "max_tokens": 32000,
    "messages": [
        {"role": "system", "content": filler(2096)},
        {"role": "user", "content": filler(40)},
        {"role": "user", "content": '"say hi"'},
    ],
    **_STREAM,
}
OPENCODE = {
    "model": "gpt-9",
    "max_tokens": 32000,
    "messages": [{"role": "system", "content": filler(9570)}, {"role": "user", "content": '"say hi"'}],
    "tools": _of_chat(_functions([4628, 1369, 516, 656, 1158, 398, 3019, 2012, 750, 623], "bash", _COMMAND)),
    "tool_choice": "auto",
    **_STREAM,
}
QWEN = {
    "model": "gpt-9",
    "messages": [
        {"role": "system", "content": filler(28902)},
        {"role": "user", "content": [{"type": "text", "text": filler(n)} for n in (6099, 370, 2624, 224, 6)]},
    ],
    "max_tokens": 32768,
    "tools": _of_chat(
        _functions(
            [10716, 1518, 366, 542, 451, 1018, 260, 1429, 4946, 1894, 218, 1102, 1546, 1179],
            "run_shell_command",
            {**_COMMAND, "is_background": {"type": "boolean", "default": False}},
        )
    ),
    **_STREAM,
}
CONTINUE = {
    "model": "gpt-9",
    "messages": [{"role": "system", "content": filler(1259)}, {"role": "user", "content": "say hi"}],
    "tools": _of_chat(_functions([301, 49, 45, 24, 90, 163, 202, 369, 2644, 74, 185], "Bash", _COMMAND)),
    **_STREAM,
}
CLINE = {
    "model": "gpt-9:latest",
    "messages": [{"role": "system", "content": filler(4263)}, {"role": "user", "content": "say hi"}],
    "options": {"num_ctx": 32768},
    "tools": _of_chat(
        _functions(
            [634, 444, 992, 336, 551, 314, 146, 56, 31, 79, 309, 86, 29, 116, 160, 46, 37, 31, 42, 64, 32, 40, 28, 21],
            "run_commands",
            {"commands": {"type": "array", "items": _text(40), "maxItems": 8}},
        )
    ),
    "tool_choice": "auto",
    "stream": True,
}


def _said(role: str, *sizes: int) -> dict:
    parts = [{"type": "input_text", "text": filler(n)} for n in sizes]
    return {"type": "message", "id": f"msg_{role}_{sizes[0]:032}", "role": role, "content": parts}


_RESPONSE = {
    "model": "gpt-9",
    "stream": True,
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1e002-0ba7-78f0-b57f-ab2e97a3e8a5",
}
_FUNCTION = {"type": "function", "strict": False}
CODEX = {
    **_RESPONSE,
    "input": [_said("developer", 16978), _said("developer", 1964, 362), _said("user", 359), _said("user", 6)],
    "tools": [
        *_functions([82, 80, 120, 123], "exec_command", {"cmd": _text(40), "workdir": _text(90)}, **_FUNCTION),
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": filler(43),
            "tools": _functions([298, 410, 300, 1200, 350], "close_agent", {"target": _text(60)}, **_FUNCTION),
        },
        *({**one, "name": f"goal_{i}"} for i, one in enumerate(_functions([122, 265, 1541], "", {}, **_FUNCTION))),
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "client_metadata": {"session_id": "01a1e002", "turn_id": "01a1e003", "x-codex-turn-metadata": filler(803)},
}
COPILOT = {
    **_RESPONSE,
    "instructions": filler(21531),
    "input": [{"role": "user", "content": [{"type": "input_text", "text": filler(74)}], "type": "message"}],
    "tools": _functions(
        [774, 630, 233, 248, 263, 230, 511, 109, 588, 222, 5721, 747, 854, 956, 56, 35, 1007],
        "bash",
        _COMMAND,
        **_FUNCTION,
    ),
}


def next_chat(body: dict, message: dict, **result) -> dict:
    """Returns the second turn of an agent that speaks chat completions or Ollama's dialect."""
    body = copy.deepcopy(body)
    body["messages"] += [message, {"role": "tool", "content": "hi\n", **result}]
    return body


def next_response(body: dict, output: list[dict], *, repeats_thought: bool) -> dict:
    """Returns the second turn of an agent that speaks responses; one sends its thought again as text."""
    body = copy.deepcopy(body)
    for item in output:
        if item["type"] == "function_call" and repeats_thought:
            text = {"type": "output_text", "text": "I think.", "annotations": []}
            body["input"].append({"type": "message", "id": "msg_1", "role": "assistant", "content": [text]})
        body["input"].append(item)
    (call,) = (item for item in output if item["type"] == "function_call")
    assert json.loads(call["arguments"])
    body["input"].append({"type": "function_call_output", "call_id": call["call_id"], "output": filler(105)})
    return body
