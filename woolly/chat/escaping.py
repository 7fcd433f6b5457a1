"""Removal of control tokens from untrusted text: tool results and tool descriptions.

Otherwise, a page that a tool has fetched could end its message and continue with a system message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from woolly.chat.message import Message, TextPart

if TYPE_CHECKING:
    from woolly.chat.tools.tool import Tool
    from woolly.tokens import Tokenizer


def escape_results(messages: Sequence[Message], tokenizer: Tokenizer) -> tuple[Message, ...]:
    """Return the messages without control tokens in tool results."""
    return tuple(_plain(message, tokenizer) if message.role == "tool" else message for message in messages)


def escape_tools(tools: Sequence[Tool], tokenizer: Tokenizer) -> tuple[Tool, ...]:
    """Return the tools without control tokens in descriptions. Names and values must match calls and are unchanged."""
    return tuple(
        replace(
            tool,
            description=None if tool.description is None else tokenizer.break_marks(tool.description),
            parameters=None if tool.parameters is None else _described(tool.parameters, tokenizer),
        )
        for tool in tools
    )


def _plain(result: Message, tokenizer: Tokenizer) -> Message:
    if isinstance(result.content, tuple):
        parts = (
            TextPart(tokenizer.break_marks(part.text)) if isinstance(part, TextPart) else part
            for part in result.content
        )
        return replace(result, content=tuple(parts))
    return result if result.content is None else replace(result, content=tokenizer.break_marks(result.content))


def _described(schema: Any, tokenizer: Tokenizer) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: tokenizer.break_marks(value)
            if key in ("description", "title") and isinstance(value, str)
            else _described(value, tokenizer)
            for key, value in schema.items()
        }
    return [_described(value, tokenizer) for value in schema] if isinstance(schema, list) else schema
