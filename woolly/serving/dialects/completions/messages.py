"""Messages of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from woolly import chat
from woolly.multimodal.inputs import AudioInput, ImageInput, VideoInput
from woolly.serving.dialects.custom_tools import custom_arguments
from woolly.serving.dialects.files import file_part
from woolly.serving.dialects.omitted_media import OMITTED_FILE, OMITTED_IMAGE
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore


class Part(BaseModel):
    """A part of a message: text, image_url, input_audio, audio_url, video_url, file or refusal."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class FunctionCall(BaseModel):
    """The function of an earlier tool call."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: str = Field(description="JSON string.")


class CustomCall(BaseModel):
    """The custom tool of an earlier call."""

    model_config = ConfigDict(extra="forbid")

    name: str
    input: str


class MessageCall(BaseModel):
    """An earlier tool call."""

    model_config = ConfigDict(extra="forbid")

    id: str
    type: str = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None
    index: int | None = Field(None, description="Accepted, because streams send it.")


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(
        description="system, developer, user, assistant, tool, function (legacy), or another role of the model's"
        " chat template.",
    )
    content: str | Items[Part] | None = None
    name: str | None = None
    tool_calls: Items[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="Reasoning of the model, as in replies.")
    reasoning: str | None = Field(None, description="Same as reasoning_content (vLLM and others).")
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    function_call: FunctionCall | None = Field(None, description="Same as tool_calls (legacy).")
    annotations: list[Any] | None = Field(None, description="Accepted without effect.")


def read_messages(messages: Sequence[Message]) -> tuple[chat.Message, ...]:
    """Convert messages to messages of a ChatRequest. Raises ApiError for unsupported fields."""
    called = ""  # id of the last call in OpenAI's legacy format, which has no ids
    talk: list[chat.Message] = []
    for i, message in enumerate(messages):
        where = f"messages.{i}"
        if message.role == "function":
            if not message.name:
                raise invalid_param(
                    f"{where}.name", "missing; a message with role 'function' needs the name of the function"
                )
            talk.append(chat.Message("tool", _content(message, where), message.name, call_id=called or f"call_{i}"))
            continue
        one = _one(message, where)
        if message.function_call is not None:
            called = f"call_{i}"
            call = chat.ToolCall(called, message.function_call.name, message.function_call.arguments)
            one = replace(one, calls=(*one.calls, call))
        talk.append(one)
    return tuple(talk)


def _one(message: Message, where: str) -> chat.Message:
    if message.audio is not None:
        raise invalid_param(f"{where}.audio", "audio in a message is not supported; remove it")
    if message.role != "assistant":
        if message.function_call is not None:
            raise invalid_param(
                f"{where}.function_call", f"only assistant messages have calls; the role is {message.role[:40]!r}"
            )
        if message.tool_calls is not None:
            raise invalid_param(
                f"{where}.tool_calls", f"only assistant messages have calls; the role is {message.role!r}"
            )
        for name in ("reasoning_content", "reasoning"):
            if getattr(message, name) is not None:
                raise invalid_param(
                    f"{where}.{name}", f"only assistant messages have reasoning; the role is {message.role!r}"
                )
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid_param(f"{where}.tool_call_id", "missing; a message with role 'tool' needs the id of the call")
    if message.role != "tool" and message.tool_call_id is not None:
        raise invalid_param(f"{where}.tool_call_id", f"only tool messages have a call id; the role is {message.role!r}")
    return chat.Message(
        "system" if message.role == "developer" else message.role,
        _content(message, where),
        message.name,
        tuple(_call(call, f"{where}.tool_calls.{i}") for i, call in enumerate(message.tool_calls or ())),
        message.tool_call_id,
        message.reasoning_content or message.reasoning,
    )


def _content(message: Message, where: str) -> str | tuple[chat.Part, ...]:
    content = message.content
    if content is None:
        # Templates concatenate the content, so a message with only calls gets an empty string as content.
        if message.role != "assistant":
            raise invalid_param(f"{where}.content", f"missing; a message with role {message.role!r} needs content")
        return message.refusal or ""
    if isinstance(content, str):
        return content
    is_result = message.role == "tool"
    return tuple(_part(part, f"{where}.content.{i}", is_result=is_result) for i, part in enumerate(content))


def _part(part: Part, where: str, *, is_result: bool) -> chat.Part:
    """Convert a part. Images and files in tool results become notes, so that an agent can continue."""
    if is_result and part.type in ("image_url", "image"):
        ignore("messages.content.image_url (the model reads a note)")
        return chat.TextPart(OMITTED_IMAGE)
    if is_result and part.type in ("file", "video_url"):
        ignore(f"messages.content.{part.type} (the model reads a note)")
        return chat.TextPart(OMITTED_FILE)
    if part.type == "refusal" and isinstance(text := (part.model_extra or {}).get("refusal"), str):
        return chat.TextPart(text)
    if part.type == "image_url":
        return _image(part, where)
    if part.type in ("input_audio", "audio_url"):
        return _audio(part, where)
    if part.type == "video_url":
        return _video(part, where)
    if part.type == "file":
        return _file(part, where)
    if part.type != "text":
        raise invalid_param(
            where,
            f"parts of type {part.type[:40]!r} are not supported; use text, image_url, input_audio, video_url or file",
        )
    if part.text is None:
        raise invalid_param(f"{where}.text", "missing; a text part needs text")
    return chat.TextPart(part.text)


def _image(part: Part, where: str) -> chat.ImagePart:
    given = (part.model_extra or {}).get("image_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise invalid_param(f"{where}.image_url", "expected an object with a url such as data:image/png;base64,...")
    if isinstance(given, dict) and given.get("detail") not in (None, "auto"):
        ignore("messages.content.image_url.detail (an image is always prepared as the model's processor does)")
    return chat.ImagePart(ImageInput(url=url, where=f"{where}.image_url"))


def _audio(part: Part, where: str) -> chat.AudioPart:
    """Convert an audio clip: base64 in OpenAI's format, or a data: URL in vLLM's format."""
    given = (part.model_extra or {}).get(part.type)
    place = f"{where}.{part.type}"
    if part.type == "audio_url":
        url = given.get("url") if isinstance(given, dict) else given
        if not isinstance(url, str):
            raise invalid_param(place, "expected an object with a url such as data:audio/wav;base64,...")
        return chat.AudioPart(AudioInput(url=url, where=place))
    data = given.get("data") if isinstance(given, dict) else None
    if not isinstance(data, str):
        raise invalid_param(place, "expected an object with data in base64 and a format such as wav")
    return chat.AudioPart(AudioInput(base64=data, where=place))


def _video(part: Part, where: str) -> chat.VideoPart:
    """Convert a video in vLLM's format."""
    given = (part.model_extra or {}).get("video_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise invalid_param(f"{where}.video_url", "expected an object with a url such as data:video/mp4;base64,...")
    return chat.VideoPart(VideoInput(data=url, where=f"{where}.video_url"))


def _file(part: Part, where: str) -> chat.Part:
    given = (part.model_extra or {}).get("file")
    data = given.get("file_data") if isinstance(given, dict) else None
    if isinstance(given, dict) and given.get("file_id") is not None:
        raise invalid_param(
            f"{where}.file.file_id", "stored files are not supported in chats; send the bytes as file_data"
        )
    if not isinstance(given, dict) or not isinstance(data, str):
        raise invalid_param(
            f"{where}.file", "expected an object with file_data such as data:application/pdf;base64,..."
        )
    name = given.get("filename")
    return file_part(data, name if isinstance(name, str) else "", f"{where}.file.file_data")


def _call(call: MessageCall, where: str) -> chat.ToolCall:
    if call.type == "custom" and call.custom is not None:
        return chat.ToolCall(call.id, call.custom.name, custom_arguments(call.custom.input))
    if call.type != "function" or call.function is None:
        raise invalid_param(where, "only calls of type 'function' or 'custom' are supported")
    return chat.ToolCall(call.id, call.function.name, call.function.arguments)
