"""Messages of Gemini's API: parts of text, reasoning, calls and results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from woolly import chat
from woolly.multimodal.inputs import AudioInput, FileInput, ImageInput, VideoInput
from woolly.serving.dialects.encrypted_reasoning import decode_reasoning
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param


class Camel(BaseModel):
    """Body that accepts field names in camel case and snake case, as Google's API does."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class FunctionCall(Camel):
    """A call by the model."""

    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class FunctionResponse(Camel):
    """Result of a function call."""

    name: str
    response: dict[str, Any] | None = None
    id: str | None = None
    will_continue: bool | None = Field(None, description="Accepted without effect.")
    scheduling: str | None = Field(None, description="Accepted without effect.")
    parts: list[Any] | None = None


class Part(Camel):
    """A part of a message. Raises ApiError for unsupported kinds."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Any = None
    file_data: Any = None
    executable_code: Any = None
    code_execution_result: Any = None
    video_metadata: Any = None


class Content(Camel):
    """A message of a chat."""

    role: str | None = None
    parts: Items[Part] | None = None


def read_contents(system: str | Content | None, contents: Sequence[Content]) -> tuple[chat.Message, ...]:
    """Convert messages to messages of a ChatRequest. Raises ApiError for unsupported fields."""
    talk: list[chat.Message] = []
    if system is not None:
        text = system if isinstance(system, str) else text_of(system, "systemInstruction")
        if text:
            talk.append(chat.Message("system", text))
    open_calls: list[chat.ToolCall] = []  # calls without a result
    for i, content in enumerate(contents):
        where = f"contents.{i}"
        if content.role == "model":
            talk.append(_answer(content, where))
            open_calls += talk[-1].calls
        elif content.role in (None, "user", "function"):
            talk += _turn(content, where, open_calls)
        elif content.role == "system":
            talk.append(chat.Message("system", text_of(content, where)))
        else:
            raise invalid_param(f"{where}.role", f"expected 'user' or 'model', but got {content.role[:40]!r}")
    return tuple(talk)


def text_of(content: Content, where: str) -> str:
    """Return the text of a message without other parts."""
    return "\n".join(_text(part, f"{where}.parts.{i}") for i, part in enumerate(content.parts or ()))


def _answer(content: Content, where: str) -> chat.Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[chat.ToolCall] = []
    for i, part in enumerate(content.parts or ()):
        place = f"{where}.parts.{i}"
        if part.thought:
            thoughts.append(part.text or "")
        elif part.function_call is not None:
            call = part.function_call
            arguments = json.dumps(call.args or {}, ensure_ascii=False)
            calls.append(chat.ToolCall(call.id or f"call_{where.rpartition('.')[2]}_{i}", call.name, arguments))
        elif part.text is not None or not part.thought_signature:
            texts.append(_text(part, place))
    if not any(thoughts):
        thoughts = [decode_reasoning(part.thought_signature) for part in content.parts or ()]
    reasoning = "\n".join(thought for thought in thoughts if thought)
    return chat.Message("assistant", "".join(texts), calls=tuple(calls), reasoning=reasoning or None)


def _turn(content: Content, where: str, open_calls: list[chat.ToolCall]) -> list[chat.Message]:
    """Return the tool results, one message each, then a message with text, images and audio."""
    results: list[chat.Message] = []
    said: list[chat.Part] = []
    for i, part in enumerate(content.parts or ()):
        given = part.function_response
        if given is None:
            said.append(_said(part, f"{where}.parts.{i}"))
            continue
        if given.parts:
            raise invalid_param(f"{where}.parts.{i}.functionResponse.parts", "files are not supported here; send text")
        call = next((one for one in open_calls if given.id in (None, one.id) and one.name == given.name), None)
        if call is not None:
            open_calls.remove(call)
        id = given.id or (call.id if call is not None else f"call_{where.rpartition('.')[2]}_{i}")
        results.append(chat.Message("tool", _result(given.response), given.name, call_id=id))
    texts = [part.text for part in said if isinstance(part, chat.TextPart)]
    content_said = "\n".join(texts) if len(texts) == len(said) else tuple(said)
    return [*results, chat.Message("user", content_said)] if said or not results else results


def _result(response: dict[str, Any] | None) -> str:
    """Return a result as text: its only field `output` or `result`, or else its JSON."""
    given = response or {}
    if len(given) == 1 and isinstance(text := given.get("output", given.get("result")), str):
        return text
    return json.dumps(given, ensure_ascii=False)


def _said(part: Part, where: str) -> chat.Part:
    """Return a part of a user message: image, audio clip, video, file or text."""
    given = part.inline_data
    if given is None:
        return chat.TextPart(_text(part, where))
    place = f"{where}.inlineData"
    data = given.get("data") if isinstance(given, dict) else None
    media = (given.get("mimeType") or given.get("mime_type")) if isinstance(given, dict) else None
    if not isinstance(data, str) or not isinstance(media, str):
        raise invalid_param(
            place,
            "expected an object with data in base64 and a mimeType such as image/png or application/pdf",
        )
    # URL-safe base64 is accepted too, as in Google's API.
    plain = data.replace("-", "+").replace("_", "/")
    if media.lower().startswith("audio/"):
        return chat.AudioPart(AudioInput(base64=plain, media_type=media, where=place))
    if media.lower().startswith("video/"):
        return chat.VideoPart(VideoInput(data=plain, where=place))
    if media.lower() == "application/pdf":
        return chat.FilePart(FileInput(data=plain, media_type=media, where=place))
    return chat.ImagePart(ImageInput(base64=plain, media_type=media, where=place))


def _text(part: Part, where: str) -> str:
    if part.file_data is not None:
        raise invalid_param(f"{where}.fileData", "stored files are not supported; send an image as inlineData, or text")
    if part.inline_data is not None:
        raise invalid_param(f"{where}.inlineData", "images are only supported in user messages; send text")
    if part.text is None:
        raise invalid_param(where, "this kind of part is not supported here; send text")
    return part.text
