"""Converts input items of OpenAI's Responses API to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from woolly.chat import AudioPart, FilePart, ImagePart, Message, Part, TextPart, ToolCall
from woolly.chat.compaction import summary_text
from woolly.multimodal.inputs import AudioInput, FileInput, ImageInput
from woolly.serving.dialects.custom_tools import custom_arguments
from woolly.serving.dialects.encrypted_reasoning import decode_reasoning
from woolly.serving.dialects.files import file_part, file_text
from woolly.serving.dialects.omitted_media import OMITTED_FILE, OMITTED_IMAGE
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

Item = Mapping[str, Any]

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class _Talk:
    """Messages so far, and the open assistant message.

    Consecutive reasoning, text and calls are merged into one message, and so is text between a call and its result.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._thoughts: list[str] = []

    def think(self, thought: str) -> None:
        if self._texts or self._calls:
            self.close()
        if thought:
            self._thoughts.append(thought)

    def say(self, text: str) -> None:
        self._texts.append(text)

    def call(self, call: ToolCall) -> None:
        self._calls.append(call)

    def add(self, message: Message) -> None:
        self.close()
        self.messages.append(message)

    def close(self) -> None:
        if self._texts or self._calls or self._thoughts:
            text, thought = "\n\n".join(self._texts), "\n".join(self._thoughts)
            self.messages.append(Message("assistant", text, calls=tuple(self._calls), reasoning=thought or None))
        self._texts, self._calls, self._thoughts = [], [], []


def read_items(items: Sequence[Item]) -> list[Message]:
    """Convert items to messages. Raises ApiError for unsupported fields."""
    talk = _Talk()
    for i, item in enumerate(items):
        _read(item, f"input.{i}", talk)
    talk.close()
    return talk.messages


def _read(item: Item, where: str, talk: _Talk) -> None:
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message":
        _read_message(item, where, talk)
    elif kind == "reasoning":
        talk.think(decode_reasoning(_text(item, "encrypted_content")) or _reasoning_text(item, where))
    elif kind == "function_call":
        name, namespace = _needed(item, "name", where), _text(item, "namespace")
        full = f"{namespace}.{name}" if namespace else name
        talk.call(ToolCall(_needed(item, "call_id", where), full, _text(item, "arguments") or "{}"))
    elif kind == "custom_tool_call":
        arguments = custom_arguments(_text(item, "input") or "")
        talk.call(ToolCall(_needed(item, "call_id", where), _needed(item, "name", where), arguments))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        talk.add(Message("tool", _result(item.get("output"), where), call_id=_needed(item, "call_id", where)))
    elif kind in ("compaction", "compaction_summary"):
        if not (note := decode_reasoning(_text(item, "encrypted_content"))):
            raise invalid_param(
                f"{where}.encrypted_content", "this summary was created by another server; send the original items"
            )
        talk.add(Message("user", summary_text(note)))
    elif kind == "compaction_trigger":  # without the summary, the client would lose its conversation
        raise invalid_param(where, "a compaction_trigger must be the last input item")
    elif isinstance(kind, str):
        ignore(f"input ({kind[:40]} is not supported)")  # item of a tool on OpenAI's servers
    else:
        raise invalid_param(f"{where}.type", "missing; an item needs a type such as 'message'")


def _read_message(item: Item, where: str, talk: _Talk) -> None:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise invalid_param(
            f"{where}.role", f"expected one of: {', '.join(_ROLES)}, but got {str(item.get('role'))[:40]!r}"
        )
    content = item.get("content")
    if isinstance(content, str):
        parts: list[Part] = [TextPart(content)]
    elif isinstance(content, list):
        parts = [_read_part(part, f"{where}.content.{j}") for j, part in enumerate(content)]
    else:
        raise invalid_param(f"{where}.content", "expected a string or a list of parts")
    for one, name in ((ImagePart, "an image"), (AudioPart, "an audio clip"), (FilePart, "a file")):
        if role != "user" and any(isinstance(part, one) for part in parts):
            raise invalid_param(f"{where}.content", f"{name} is only supported in user messages")
    if role == "assistant":
        talk.say("".join(part.text for part in parts if isinstance(part, TextPart)))
    else:
        talk.add(Message(role, parts[0].text if len(parts) == 1 and isinstance(parts[0], TextPart) else tuple(parts)))


def _read_part(part: Any, where: str) -> Part:
    """Convert a part: an image, audio clip, file or text."""
    if isinstance(part, Mapping) and part.get("type") == "input_audio":
        given = part.get("input_audio")
        data = given.get("data") if isinstance(given, Mapping) else None
        if not isinstance(data, str):
            raise invalid_param(
                f"{where}.input_audio", "expected an object with data in base64 and a format such as wav"
            )
        return AudioPart(AudioInput(base64=data, where=f"{where}.input_audio"))
    if isinstance(part, Mapping) and part.get("type") == "input_file":
        if part.get("file_id") is not None:
            raise invalid_param(
                f"{where}.file_id", "stored files are not supported in chats; send the bytes as file_data"
            )
        if (url := _text(part, "file_url")) is not None:
            return FilePart(FileInput(data=_remote(url, f"{where}.file_url"), where=f"{where}.file_url"))
        if (data := _text(part, "file_data")) is None:
            raise invalid_param(f"{where}.file_data", "missing; expected data:application/pdf;base64,...")
        return file_part(data, _text(part, "filename") or "", f"{where}.file_data")
    if not isinstance(part, Mapping) or part.get("type") != "input_image":
        return TextPart(_part(part, where))
    if (url := _text(part, "image_url")) is None:
        raise invalid_param(f"{where}.image_url", "missing; expected data:image/png;base64,...")
    if part.get("detail") not in (None, "auto"):
        ignore("input.content.detail (an image is always prepared as the model's processor does)")
    return ImagePart(ImageInput(url=url, where=f"{where}.image_url"))


def _remote(url: str, where: str) -> str:
    if url[:4].lower() != "http":
        raise invalid_param(where, "expected an http(s) address; send bytes as file_data")
    return url


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        if (text := _text(part, "text")) is None:
            raise invalid_param(f"{where}.text", "missing; a text part needs text")
        return text
    if kind == "refusal":
        return _text(part, "refusal") or ""
    if kind == "input_file" and (text := file_text(_text(part, "file_data") or "")) is not None:
        return "\n".join(one for one in (_text(part, "filename"), text) if one)
    raise invalid_param(where, f"parts of type {str(kind)[:40]!r} are not supported here; send text")


def _result(output: Any, where: str) -> str:
    """Return the text of a tool result. Images and files become notes, so that an agent can continue."""
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise invalid_param(f"{where}.output", "expected a string or a list of parts")
    texts = []
    for j, part in enumerate(output):
        if isinstance(part, Mapping) and part.get("type") == "input_image":
            ignore("input.output.input_image (the model reads a note)")
            texts.append(OMITTED_IMAGE)
        elif _is_unread(part):
            ignore("input.output.input_file (the model reads a note)")
            texts.append(OMITTED_FILE)
        else:
            texts.append(_part(part, f"{where}.output.{j}"))
    return "\n".join(texts)


def _is_unread(part: Any) -> bool:
    """Return True if a part of a result is a file that is not plain text."""
    if not isinstance(part, Mapping) or part.get("type") != "input_file":
        return False
    return file_text(_text(part, "file_data") or "") is None


def _reasoning_text(item: Item, where: str) -> str:
    """Return the text of a reasoning item: its content, or else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts is not None and not isinstance(parts, list):
            raise invalid_param(f"{where}.{name}", "expected a list of parts")
        texts = [_text(part, "text") or "" for part in parts or () if isinstance(part, Mapping)]
        if any(texts):
            return "\n".join(texts)
    return ""


def _text(item: Item, name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) else None


def _needed(item: Item, name: str, where: str) -> str:
    if not (value := _text(item, name)):
        raise invalid_param(f"{where}.{name}", "missing; expected a string")
    return value
