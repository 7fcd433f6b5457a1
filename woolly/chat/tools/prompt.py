"""Tools for templates without tool support: the system message describes the tools, and calls are plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.chat.message import Message, read_arguments

if TYPE_CHECKING:
    from woolly.chat.tools.tool import Tool

_INTRODUCTION = """You can call these functions:
{tools}

To call one, answer with nothing but a JSON object: {{"name": <its name>, "arguments": <an object>}}"""

_INTRODUCTION_BY_EXAMPLE = """You can call these functions:
{tools}

To call one, answer with nothing but a call in this form:
{example}"""


def renders_tools(template: str) -> bool:
    """Return True if a chat template's source reads the `tools` variable."""
    return re.search(r"\btools\b|(?:\{\{-?|[+~])\s*functions\b", template) is not None


def describe_tools(messages: Sequence[Message], tools: Sequence[Tool], example: str = "") -> list[Message]:
    """Return the conversation with the tools in its system message.

    Calls and results become text messages like `example`, unless the template renders calls.
    """
    plain = list(messages) if example else [_plain(message) for message in messages]
    if not tools:
        return plain
    listed = "\n".join(json.dumps(tool.to_json()["function"], ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=listed)
    if example:
        introduction = _INTRODUCTION_BY_EXAMPLE.format(tools=listed, example=example)
    if plain and plain[0].role == "system":
        return [replace(plain[0], content=f"{plain[0].text}\n\n{introduction}"), *plain[1:]]
    return [Message("system", introduction), *plain]


def _plain(message: Message) -> Message:
    if message.role == "tool":
        name = f" of {message.name}" if message.name else ""
        return Message("user", f"Result{name}: {message.text}")
    if not message.calls:
        return message
    calls = [json.dumps({"name": c.name, "arguments": read_arguments(c)}, ensure_ascii=False) for c in message.calls]
    text = message.text
    return Message(message.role, "\n".join([text, *calls] if text else calls))
