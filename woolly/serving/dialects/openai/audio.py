"""/v1/audio/transcriptions and /v1/audio/translations, by speech-to-text models or chat models with audio input."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from woolly.chat import AudioPart, ChatRequest, Message, ReasoningOptions, TextPart
from woolly.errors import RequestError
from woolly.multimodal.inputs import AudioInput
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.openai.audio_model import check_takes_audio, find_audio_model
from woolly.serving.dialects.openai.chat_transcripts import TranscriptReply, frames, full_reply
from woolly.serving.dialects.openai.form import read_form
from woolly.serving.dialects.openai.speech_to_text import answer_transcription
from woolly.serving.dialects.openai.transcript_form import (
    FORMATS,
    SUBTITLE_FORMATS,
    TranscriptForm,
    read_transcript_form,
)
from woolly.serving.dialects.reply import open_chat, stream_reply
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.router import APIRouter

router = APIRouter()

_TEXT = {"type": "string"}
_FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "WAV, FLAC, MP3 or OGG."},
        "model": _TEXT,
        "prompt": {**_TEXT, "description": "Text before the audio; the model keeps its spelling and style."},
        "language": {**_TEXT, "description": "Spoken language: a code such as de, or a name."},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
        "response_format": {"type": "string", "enum": [*FORMATS, *SUBTITLE_FORMATS], "default": "json"},
        "timestamp_granularities": {"type": "array", "items": {"type": "string", "enum": ["word", "segment"]}},
        "stream": {"type": "boolean", "default": False},
    },
}
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}
_REPLIES: dict[int | str, dict[str, Any]] = {200: {"model": TranscriptReply, "content": {"text/plain": {}}}}


@router.post("/v1/audio/transcriptions", responses=_REPLIES, response_model=None, openapi_extra=_BODY)
async def transcribe(request: Request) -> Response:
    """Transcribe audio in its original language; with `stream`, as server-sent events."""
    return await _answer(request, is_translation=False)


@router.post("/v1/audio/translations", responses=_REPLIES, response_model=None, openapi_extra=_BODY)
async def translate(request: Request) -> Response:
    """Translate audio into English; with `stream`, as server-sent events."""
    return await _answer(request, is_translation=True)


async def _answer(request: Request, *, is_translation: bool) -> Response:
    state = request.scope["state"]
    fields = await run_in_thread(read_form, state.get("form_type", ""), await request.body(), "file and model")
    asked = fields.get("model", (None, b""))[1].decode("utf-8", "replace") or None
    name, has_timestamps = await find_audio_model(request, asked)
    if "file" in fields:  # before the check of timestamp options
        await check_takes_audio(request, name)
    form = read_transcript_form(fields, is_translation=is_translation, has_timestamps=has_timestamps)
    state["json"] = form.shown
    form = replace(form, model=name)
    if has_timestamps:
        return await answer_transcription(request, form)
    dialect = dialect_of(request)
    generator: Generator = request.app.state.generator
    chat = await _chat(generator, form)
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit())
        try:
            head, chunks = await open_chat(stack, request, dialect, chat, admitted, model=form.model, form=form)
        except ApiError as error:
            if error.param == "file":
                await check_takes_audio(request, form.model)  # a model may be loaded without its projector
            elif error.param in ("messages", "prompt"):  # the prompt is mostly audio
                error.param = "file"
            raise
        if form.is_stream:
            return stream_reply(dialect, frames(chunks, head), stack.pop_all())
        return await full_reply(chunks, head)


async def _chat(generator: Generator, form: TranscriptForm) -> ChatRequest:
    """Return the conversation: the audio, then the instruction. Reasoning is not part of a transcript."""
    defaults = await generator.defaults_for(form.model)
    parts = (AudioPart(AudioInput(form.file, where="file")), TextPart(form.instruction))
    try:
        params = replace(defaults, temperature=form.temperature, n=1)
        return ChatRequest((Message("user", parts),), params, reasoning=ReasoningOptions(is_split=True))
    except RequestError as error:
        raise to_api_error(error) from error
