"""Messages of Anthropic's API: blocks of text, reasoning, tool calls and results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly import chat
from woolly.multimodal.inputs import FileInput, ImageInput
from woolly.serving.dialects.encrypted_reasoning import decode_reasoning
from woolly.serving.dialects.omitted_media import OMITTED_FILE, OMITTED_IMAGE
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

# First system block of Claude Code. It is different in each chat, would prevent the reuse of cached prefixes, and has
# no meaning for the model.
_BILLING = "x-anthropic-billing-header"


class Block(BaseModel):
    """A block of a message. Unsupported types may have further fields, which are ignored."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    source: str | dict[str, Any] | None = None
    title: str | None = None


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["user", "assistant", "system"]
    content: str | Items[Block] = Field(description="A string or a list of blocks.")


def read_messages(system: str | Sequence[Block] | None, messages: Sequence[Message]) -> tuple[chat.Message, ...]:
    """Convert messages to messages of a ChatRequest. Raises ApiError for unsupported fields."""
    talk: list[chat.Message] = []
    blocks = [Block(type="text", text=system)] if isinstance(system, str) else list(system or ())
    texts = [_text(block, f"system.{i}") for i, block in enumerate(blocks)]
    if shown := [text for text in texts if not text.startswith(_BILLING)]:
        talk.append(chat.Message("system", "\n".join(shown)))
    for i, message in enumerate(messages):
        where = f"messages.{i}.content"
        content = message.content
        if isinstance(content, str):
            talk.append(chat.Message(message.role, content))
        elif message.role == "assistant":
            talk.append(_assistant(content, where))
        else:
            talk += _user(message.role, content, where)
    return tuple(talk)


def _assistant(blocks: Sequence[Block], where: str) -> chat.Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[chat.ToolCall] = []
    for i, block in enumerate(blocks):
        place = f"{where}.{i}"
        if block.type == "thinking":
            thoughts.append(block.thinking or decode_reasoning(block.signature))
        elif block.type == "tool_use":
            if block.id is None or block.name is None:
                raise invalid_param(place, "a tool_use block needs id and name")
            calls.append(chat.ToolCall(block.id, block.name, json.dumps(block.input or {}, ensure_ascii=False)))
        elif block.type == "redacted_thinking":
            ignore(f"{where}.redacted_thinking")
        elif _is_of_a_server_tool(block):
            ignore(f"{where}.{block.type}")
        else:
            texts.append(_text(block, place))
    reasoning = "\n".join(thought for thought in thoughts if thought)
    return chat.Message("assistant", "".join(texts), calls=tuple(calls), reasoning=reasoning or None)


def _user(role: str, blocks: Sequence[Block], where: str) -> list[chat.Message]:
    """Return the tool results, one message each, then a message with text, images and files."""
    results: list[chat.Message] = []
    said: list[chat.Part] = []
    for i, block in enumerate(blocks):
        place = f"{where}.{i}"
        if block.type == "tool_result":
            if block.tool_use_id is None:
                raise invalid_param(f"{place}.tool_use_id", "missing; set it to the id of the tool_use")
            results.append(chat.Message("tool", _result(block, place), call_id=block.tool_use_id))
        elif _is_of_a_server_tool(block):
            ignore(f"{where}.{block.type}")
        elif block.type == "image" and role == "user":
            said.append(_image(block, place))
        elif block.type == "document" and role == "user" and _source(block).get("type") in ("base64", "url", "file"):
            said.append(_file(block, place))
        else:
            said.append(chat.TextPart(_text(block, place)))
    return [*results, chat.Message(role, _content(said))] if said or not results else results


def _content(parts: Sequence[chat.Part]) -> str | tuple[chat.Part, ...]:
    """Join the parts if all are text."""
    texts = [part.text for part in parts if isinstance(part, chat.TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def _image(block: Block, where: str) -> chat.ImagePart:
    source, place = block.source, f"{where}.source"
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "base64" and isinstance(data := source.get("data"), str):
        media = source.get("media_type")
        return chat.ImagePart(ImageInput(base64=data, media_type=media if isinstance(media, str) else "", where=place))
    if isinstance(source, dict) and kind == "url" and isinstance(url := source.get("url"), str):
        return chat.ImagePart(ImageInput(url=url, where=place))
    raise invalid_param(place, "expected a source of type 'base64' with data, or of type 'url'")


def _file(block: Block, where: str) -> chat.FilePart:
    source, place = _source(block), f"{where}.source"
    if source["type"] == "url" and isinstance(url := source.get("url"), str) and url[:4].lower() == "http":
        return chat.FilePart(FileInput(data=url, name=block.title or "", where=place))
    if source["type"] != "base64":
        raise invalid_param(
            place, "stored files are not supported; send a source of type 'base64', or 'url' with an http(s) address"
        )
    if not isinstance(data := source.get("data"), str) or not isinstance(media := source.get("media_type"), str):
        raise invalid_param(place, "expected a source of type 'base64' with media_type and data")
    for name in ("citations", "context"):
        if (block.model_extra or {}).get(name):
            ignore(f"messages.content.document.{name}")
    return chat.FilePart(FileInput(data=data, media_type=media, name=block.title or "", where=place))


def _source(block: Block) -> dict[str, Any]:
    return block.source if isinstance(block.source, dict) else {}


def _result(block: Block, where: str) -> str:
    """Return the text of a tool result. Images and files become notes, so that an agent can continue."""
    if isinstance(block.content, list):
        parts = []
        for i, part in enumerate(block.content):
            if part.type == "image":
                ignore("messages.content.tool_result.image")
                parts.append(OMITTED_IMAGE)
            elif part.type == "document" and _source(part).get("type") in ("base64", "url", "file"):
                ignore("messages.content.tool_result.document")
                parts.append(OMITTED_FILE)
            elif part.type == "tool_reference":
                parts.append(str((part.model_extra or {}).get("tool_name", "")))
            else:
                parts.append(_text(part, f"{where}.content.{i}"))
        text = "\n".join(parts)
    else:
        text = block.content if isinstance(block.content, str) else ""
    return f"Error: {text}" if block.is_error else text  # templates have no other place for errors


def _text(block: Block, where: str) -> str:
    if block.type == "text":
        if block.text is None:
            raise invalid_param(f"{where}.text", "missing; a text block needs text")
        return block.text
    source = _source(block)
    if block.type == "document" and source.get("type") == "text" and isinstance(source.get("data"), str):
        return "\n".join(one for one in (block.title, source["data"]) if one)
    if block.type == "search_result" and isinstance(block.content, list):
        found = [_text(part, f"{where}.content.{i}") for i, part in enumerate(block.content)]
        return "\n".join(one for one in (block.title, *found) if one)
    what = "images are only supported in user messages" if block.type == "image" else ""
    raise invalid_param(where, what or f"blocks of type {block.type[:40]!r} are not supported here; send text")


def _is_of_a_server_tool(block: Block) -> bool:
    """Return True if the block belongs to a tool that runs on Anthropic's servers."""
    return block.type in ("server_tool_use", "mcp_tool_use") or block.type.endswith("_tool_result")
