"""Texts that a stranger may have written, without control tokens: results of tools, and what tools say of themselves.

A page that a tool fetched could otherwise end its message and go on as the system.
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
    """Returns the messages without control tokens in the results of calls."""
    return tuple(_plain(message, tokenizer) if message.role == "tool" else message for message in messages)


def escape_tools(tools: Sequence[Tool], tokenizer: Tokenizer) -> tuple[Tool, ...]:
    """Returns the tools without control tokens in their descriptions. Names and values stay: calls must match them."""
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
