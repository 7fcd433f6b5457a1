"""Messages of a conversation, and the mappings that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from woolly import multimodal  # used as multimodal.NAME, so that conversations without images import none of its files
from woolly.chat.tools.tool import ToolCall
from woolly.errors import TemplateError
from woolly.templates.template import check_messages


@dataclass(frozen=True)
class TextPart:
    """Text."""

    text: str


@dataclass(frozen=True)
class OtherPart:
    """Part of another type, passed on unchanged to templates that know the type."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ImagePart:
    """Image, which is decoded when the prompt is formatted."""

    image: multimodal.ImageInput


@dataclass(frozen=True)
class AudioPart:
    """Audio clip, which is decoded when the prompt is formatted."""

    audio: multimodal.AudioInput


@dataclass(frozen=True)
class FilePart:
    """PDF file, whose pages become parts when the prompt is formatted."""

    file: multimodal.FileInput


@dataclass(frozen=True)
class VideoPart:
    """Video, whose frames become parts when the prompt is formatted."""

    video: multimodal.VideoInput


Part = TextPart | ImagePart | AudioPart | FilePart | VideoPart | OtherPart


@dataclass(frozen=True)
class Message:
    """Message of a conversation: text, tool calls, or the result of a call."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None  # role "tool": id of the call
    reasoning: str | None = None  # role "assistant": reasoning
    more: Mapping[str, Any] = field(default_factory=dict)  # further fields for templates

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Message:
        """Read a mapping with OpenAI's keys. All other keys are passed on to the template."""
        texts = {name: value for name, value in given.items() if isinstance(value, str)}
        return cls(
            given["role"],
            _content(given.get("content")),
            texts.get("name"),
            _calls(given.get("tool_calls")),
            texts.get("tool_call_id"),
            texts.get("reasoning_content"),
            given,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """Content as parts."""
        if isinstance(self.content, tuple):
            return self.content
        return (TextPart(self.content),) if self.content else ()

    @property
    def text(self) -> str:
        """Content as one string. Raises TemplateError if a part is not text."""
        if not isinstance(self.content, tuple):
            return self.content or ""
        if not all(isinstance(part, TextPart) for part in self.content):
            raise TemplateError(f"a message of role {self.role[:40]!r} that must be text has a part that is not text")
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    def to_template(self) -> dict[str, Any]:
        """Return the mapping that a chat template reads."""
        plain: dict[str, Any] = {**self.more, "role": self.role}
        if isinstance(self.content, tuple):
            plain["content"] = [_part(part) for part in self.content]
        elif self.content is not None:
            plain["content"] = self.content
        if self.calls:
            plain["tool_calls"] = [_call(call) for call in self.calls]
        own = {"name": self.name, "tool_call_id": self.call_id, "reasoning_content": self.reasoning}
        return plain | {name: value for name, value in own.items() if value is not None}


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Read messages from mappings. Raise TemplateError if a message has no role or is empty."""
    check_messages(messages)
    for number, message in enumerate(messages, 1):
        if message["role"] in ("system", "user") and message.get("content") is None:
            raise TemplateError(f"message {number} of role {message['role']!r} needs a 'content'")
    return tuple(Message.of(message) for message in messages)


def fit_ids(messages: Sequence[Message], length: int) -> list[Message]:
    """Return the messages with call ids that a template accepts: `length` letters and digits.

    Ids from other servers are replaced. The same id always gets the same replacement, so the prefix of a prompt is
    stable.
    """

    def fit(id: str) -> str:
        if len(id) == length and id.isascii() and id.isalnum():
            return id
        return blake2b(id.encode("utf-8", "replace"), digest_size=32).hexdigest()[:length]

    return [
        replace(
            message,
            calls=tuple(replace(call, id=fit(call.id)) for call in message.calls),
            call_id=None if message.call_id is None else fit(message.call_id),
        )
        for message in messages
    ]


def name_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages. A tool result without a name gets the name of its call."""
    names = {call.id: call.name for message in messages for call in message.calls}
    return [
        replace(message, name=names[message.call_id])
        if message.role == "tool" and message.name is None and message.call_id in names
        else message
        for message in messages
    ]


def _content(content: Any) -> str | tuple[Part, ...] | None:
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)) and all(isinstance(part, Mapping) for part in content):
        return tuple(_read_part(part) for part in content)
    return None


def _read_part(part: Mapping[str, Any]) -> Part:
    is_text = part.get("type") == "text" and isinstance(part.get("text"), str) and len(part) == 2
    if is_text:
        return TextPart(part["text"])
    if (file := _file(part)) is not None:
        return FilePart(file)
    if (video := _video(part)) is not None:
        return VideoPart(video)
    if (audio := _audio(part)) is not None:
        return AudioPart(audio)
    image = _image(part)
    return OtherPart(part) if image is None else ImagePart(image)


def _audio(part: Mapping[str, Any]) -> multimodal.AudioInput | None:
    """Return the audio of a part in OpenAI's or transformers' format, or None if it has no audio."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    if kind == "input_audio" and isinstance(given, Mapping) and isinstance(given.get("data"), str):
        return multimodal.AudioInput(base64=given["data"], where="input_audio")
    if kind == "audio_url":
        url = given.get("url") if isinstance(given, Mapping) else given
        return multimodal.AudioInput(url=url, where="audio_url") if isinstance(url, str) else None
    return multimodal.AudioInput(given, where="audio") if kind == "audio" and given is not None else None


def _file(part: Mapping[str, Any]) -> multimodal.FileInput | None:
    """Return the PDF file of a part: in OpenAI's format, as `{"type": "file", "file": PATH}`, or passed as an image."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    if kind == "file" and isinstance(given, Mapping) and isinstance(data := given.get("file_data"), str):
        name = given.get("filename")
        return multimodal.FileInput(data=data, name=name if isinstance(name, str) else "", where="file")
    if kind == "file" and given is not None and not isinstance(given, Mapping):
        return multimodal.FileInput(given, where="file")
    return multimodal.FileInput(given, where="image") if kind == "image" and multimodal.is_pdf(given) else None


def _video(part: Mapping[str, Any]) -> multimodal.VideoInput | None:
    """Return the video of a part: in vLLM's or transformers' format, or passed as an image."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    if kind == "video_url":
        url = given.get("url") if isinstance(given, Mapping) else given
        return multimodal.VideoInput(data=url, where="video_url") if isinstance(url, str) else None
    is_given = (kind == "video" and given is not None) or (kind == "image" and multimodal.is_video(given))
    return multimodal.VideoInput(given, where=str(kind)) if is_given else None


def _image(part: Mapping[str, Any]) -> multimodal.ImageInput | None:
    """Return the image of a part in OpenAI's or transformers' format, or None if it has no image."""
    kind = part.get("type")
    if kind == "image_url":
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, Mapping) else url
        return multimodal.ImageInput(url=url, where="image_url") if isinstance(url, str) else None
    if kind == "image" and part.get("image") is not None:
        return multimodal.ImageInput(part["image"], where="image")
    return None


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return {"type": "image"}
    if isinstance(part, AudioPart):
        return {"type": "audio"}
    if isinstance(part, (FilePart, VideoPart)):
        return {"type": "file" if isinstance(part, FilePart) else "video"}
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else dict(part.fields)


def _calls(calls: Any) -> tuple[ToolCall, ...]:
    """Return the calls if all have OpenAI's format, else none. A template may know the other format."""
    if not isinstance(calls, (list, tuple)):
        return ()
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(call, ToolCall):
            read.append(call)
        elif isinstance(function, Mapping) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", "{}")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            read.append(ToolCall(str(call.get("id", "")), function["name"], text))
        else:
            return ()
    return tuple(read)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": read_arguments(call)}}


def read_arguments(call: ToolCall) -> Any:
    """Parse arguments that are a JSON object, because templates write JSON themselves. Return other text unchanged."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments
