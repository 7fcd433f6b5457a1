"""Messages as OpenAI's clients send them, and as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.errors import ApiError
from woolly.serving.parameters import Items

__all__ = ["FunctionCall", "Message", "MessageCall", "Part", "template_messages"]


class Part(BaseModel):
    """A part of a message; others than text are refused by their type."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class FunctionCall(BaseModel):
    """The function of a call that was made before."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: str = Field(description="JSON text.")


class MessageCall(BaseModel):
    """A call that was made before."""

    model_config = ConfigDict(extra="forbid")

    id: str
    type: str = "function"
    function: FunctionCall | None = None
    custom: dict[str, Any] | None = None
    index: int | None = Field(None, description="As streams give it; not needed.")


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[Part] | None = None
    name: str | None = None
    tool_calls: Items[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What the model thought, as replies give it.")
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    annotations: list[Any] | None = Field(None, description="As replies of others give them; not read.")


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """What a chat template reads; ApiError names what it could not say."""
    names: dict[str, str] = {}  # of calls, by their id
    return [_one(message, f"messages.{i}", names) for i, message in enumerate(messages)]


def _one(message: Message, where: str, names: dict[str, str]) -> dict[str, Any]:
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise _refuse(f"{where}.{name}", f"{name} in a message is not supported; leave it out")
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    plain["content"] = _content(message, where)
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls is not None:
        if message.role != "assistant":
            raise _refuse(f"{where}.tool_calls", f"a message of role {message.role!r} makes no calls; leave them out")
        if message.tool_calls:
            plain["tool_calls"] = [
                _call(call, f"{where}.tool_calls.{i}", names) for i, call in enumerate(message.tool_calls)
            ]
    if message.role == "tool":
        if message.tool_call_id is None:
            raise _refuse(f"{where}.tool_call_id", "a message of role 'tool' names the call that it answers")
        plain["tool_call_id"] = message.tool_call_id
        if message.name is None and message.tool_call_id in names:
            plain["name"] = names[message.tool_call_id]
    elif message.tool_call_id is not None:
        raise _refuse(f"{where}.tool_call_id", f"a message of role {message.role!r} answers no call; leave it out")
    if message.reasoning_content is not None:
        if message.role != "assistant":
            raise _refuse(f"{where}.reasoning_content", f"a message of role {message.role!r} has no reasoning")
        plain["reasoning_content"] = message.reasoning_content
    return plain


def _content(message: Message, where: str) -> str | list[dict[str, str]]:
    content = message.content
    if content is None:
        # Templates add it to other text, so that an answer of nothing but calls has an empty one.
        if message.role != "assistant":
            raise _refuse(f"{where}.content", f"a message of role {message.role!r} needs a content")
        return message.refusal or ""
    if isinstance(content, str):
        return content
    parts = []
    for i, part in enumerate(content):
        if part.type == "refusal" and isinstance(text := (part.model_extra or {}).get("refusal"), str):
            parts.append({"type": "text", "text": text})
            continue
        if part.type != "text":
            raise _refuse(
                f"{where}.content.{i}", f"a part of type {part.type[:40]!r} is not supported; only text parts are"
            )
        if part.text is None:
            raise _refuse(f"{where}.content.{i}.text", "a text part needs a text")
        parts.append({"type": "text", "text": part.text})
    return parts


def _call(call: MessageCall, where: str, names: dict[str, str]) -> dict[str, Any]:
    if call.type != "function" or call.function is None:
        raise _refuse(where, "only calls of type 'function', with a function, are supported")
    names[call.id] = call.function.name
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
    }


def _arguments(text: str) -> Any:
    """Templates write arguments as JSON themselves; what is no object is shown as it came."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _refuse(param: str, message: str) -> ApiError:
    return ApiError(400, "invalid_request", f"{param}: {message}", param=param)
