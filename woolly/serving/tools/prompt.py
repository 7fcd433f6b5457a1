"""Tools for templates that know nothing of them: shown in the system message, and calls as plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from woolly.serving.tools.tool import Tool

__all__ = ["describe_tools", "knows_tools"]

_INTRODUCTION = """You can call these functions:
{tools}

To call one, answer with nothing but a JSON object: {{"name": <its name>, "arguments": <an object>}}"""


def knows_tools(template: str) -> bool:
    """Whether a chat template's source reads the tools that it is given."""
    return re.search(r"\btools\b", template) is not None


def describe_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The conversation with the tools in its system message, and calls and results as text of plain roles."""
    listed = "\n".join(json.dumps(tool.to_json()["function"], ensure_ascii=False) for tool in tools)
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    introduction = _INTRODUCTION.format(tools=listed)
    if plain and plain[0]["role"] == "system":
        plain[0]["content"] = f"{_text(plain[0].get('content'))}\n\n{introduction}"
        return plain
    return [{"role": "system", "content": introduction}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        name = f" of {message['name']}" if message.get("name") else ""
        return {"role": "user", "content": f"Result{name}: {_text(message.get('content'))}"}
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        json.dumps({"name": call["function"]["name"], "arguments": call["function"]["arguments"]}, ensure_ascii=False)
        for call in message["tool_calls"]
    ]
    text = _text(message.get("content"))
    return {"role": message["role"], "content": "\n".join([text, *calls] if text else calls)}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""
