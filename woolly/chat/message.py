"""Messages of a conversation, and the mappings that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from woolly import multimodal  # its names, as multimodal.NAME: conversations without images import none of its files
from woolly.chat.tools.tool import ToolCall
from woolly.errors import TemplateError
from woolly.templates.template import check_messages


@dataclass(frozen=True)
class TextPart:
    """Text."""

    text: str


@dataclass(frozen=True)
class OtherPart:
    """A part that is not text, as the caller gave it; a template that knows its type may show it."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ImagePart:
    """An image, which is decoded when the prompt is laid out."""

    image: multimodal.ImageInput


@dataclass(frozen=True)
class AudioPart:
    """An audio clip, which is decoded when the prompt is laid out."""

    audio: multimodal.AudioInput


@dataclass(frozen=True)
class FilePart:
    """A PDF file, whose pages become parts when the prompt is laid out."""

    file: multimodal.FileInput


@dataclass(frozen=True)
class VideoPart:
    """A video, whose frames become parts when the prompt is laid out."""

    video: multimodal.VideoInput


Part = TextPart | ImagePart | AudioPart | FilePart | VideoPart | OtherPart


@dataclass(frozen=True)
class Message:
    """One message: what someone said, what the model called, or what a call gave back."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None  # role "tool": the call that this answers
    reasoning: str | None = None  # role "assistant": what the model thought
    more: Mapping[str, Any] = field(default_factory=dict)  # further fields, for templates that read them

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Message:
        """Reads a mapping with the keys that OpenAI gave them; a template still sees every other key."""
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
        """The content as parts."""
        if isinstance(self.content, tuple):
            return self.content
        return (TextPart(self.content),) if self.content else ()

    @property
    def text(self) -> str:
        """The content as one text; TemplateError if a part is not text."""
        if not isinstance(self.content, tuple):
            return self.content or ""
        if not all(isinstance(part, TextPart) for part in self.content):
            raise TemplateError(f"a message of role {self.role[:40]!r} that must be text has a part that is not text")
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    def to_template(self) -> dict[str, Any]:
        """Returns the mapping that a chat template reads."""
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
    """Returns the messages of mappings; TemplateError if one of them has no role, or says nothing at all."""
    check_messages(messages)
    for number, message in enumerate(messages, 1):
        if message["role"] in ("system", "user") and message.get("content") is None:
            raise TemplateError(f"message {number} of role {message['role']!r} needs a 'content'")
    return tuple(Message.of(message) for message in messages)


def fit_ids(messages: Sequence[Message], length: int) -> list[Message]:
    """Returns the messages with ids of calls that a template accepts: `length` letters and digits.

    Ids of other servers are replaced, the same one by the same each time, so that a prompt keeps its beginning.
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
    """Returns the messages; a call's result without a name gets that of its call."""
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
    """Returns the audio of a part in OpenAI's words, or in those of transformers; None if it holds none."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    if kind == "input_audio" and isinstance(given, Mapping) and isinstance(given.get("data"), str):
        return multimodal.AudioInput(base64=given["data"], where="input_audio")
    if kind == "audio_url":
        url = given.get("url") if isinstance(given, Mapping) else given
        return multimodal.AudioInput(url=url, where="audio_url") if isinstance(url, str) else None
    return multimodal.AudioInput(given, where="audio") if kind == "audio" and given is not None else None


def _file(part: Mapping[str, Any]) -> multimodal.FileInput | None:
    """Returns the PDF file of a part: in OpenAI's words, as `{"type": "file", "file": PATH}`, or given as an image."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    if kind == "file" and isinstance(given, Mapping) and isinstance(data := given.get("file_data"), str):
        name = given.get("filename")
        return multimodal.FileInput(data=data, name=name if isinstance(name, str) else "", where="file")
    if kind == "file" and given is not None and not isinstance(given, Mapping):
        return multimodal.FileInput(given, where="file")
    return multimodal.FileInput(given, where="image") if kind == "image" and multimodal.is_pdf(given) else None


def _video(part: Mapping[str, Any]) -> multimodal.VideoInput | None:
    """Returns the video of a part: in vLLM's words, in those of transformers, or given as an image."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    if kind == "video_url":
        url = given.get("url") if isinstance(given, Mapping) else given
        return multimodal.VideoInput(data=url, where="video_url") if isinstance(url, str) else None
    is_given = (kind == "video" and given is not None) or (kind == "image" and multimodal.is_video(given))
    return multimodal.VideoInput(given, where=str(kind)) if is_given else None


def _image(part: Mapping[str, Any]) -> multimodal.ImageInput | None:
    """Returns the image of a part in OpenAI's words, or in those of transformers; None if it holds none."""
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
    """Returns calls in OpenAI's shape, and none if one has another shape: a template may still know it."""
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
    """Returns an object, which templates write as JSON themselves; text that is not an object stays as it came."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments
