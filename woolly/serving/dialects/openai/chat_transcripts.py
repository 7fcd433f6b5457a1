"""Transcription by chat models with audio input: complete replies and event streams."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi.responses import Response

from woolly.chat import Finished, Text
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.completions.replies import Reply
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.openai.transcript_form import TranscriptForm
from woolly.serving.dialects.reply import json_reply
from woolly.serving.sse import sse_event


class TranscriptUsage(Reply):
    """Input and output tokens; with verbose_json also the duration of the audio."""

    type: Literal["tokens", "duration"]
    seconds: int | None = None
    input_tokens: int
    output_tokens: int
    total_tokens: int


class TranscriptReply(Reply):
    """Transcript. The fields from `task` on belong to verbose_json."""

    text: str
    finish_reason: str | None
    usage: TranscriptUsage
    task: Literal["transcribe", "translate"] | None = None
    duration: float | None = None
    language: str | None = None
    segments: list[dict[str, Any]] | None = None  # speech-to-text models only
    words: list[dict[str, Any]] | None = None


async def full_reply(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Response:
    """Return the reply in the format of the form, without reasoning."""
    form: TranscriptForm = head.form
    texts: list[str] = []
    reason: str | None = None
    async for chunk in chunks:
        texts += (one.text for one in chunk.events if isinstance(one, Text))
        reason = _reason(chunk) or reason
    text = "".join(texts)
    if form.format == "text":
        return Response(text, media_type="text/plain; charset=utf-8")
    reply: dict[str, Any] = {"text": text, "finish_reason": reason, "usage": _usage(head)}
    if form.format == "verbose_json":
        seconds = sum(one.prepared.seconds for one in head.layout.media)
        reply["usage"] |= {"type": "duration", "seconds": math.ceil(seconds)}
        reply |= {"task": "translate" if form.is_translation else "transcribe", "duration": seconds}
        # Chat models do not report the spoken language, so the reply has it only if the form specifies it.
        language = "english" if form.is_translation else form.language
        reply |= {} if language is None else {"language": language}
    return json_reply(reply)


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield server-sent events: text deltas, then the full text; empty deltas as heartbeats."""
    beat = sse_event(_delta(""))
    return with_heartbeats(_frames(chunks, head), lambda: beat)


async def _frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    texts: list[str] = []
    reason: str | None = None
    async for chunk in chunks:
        for one in chunk.events:
            if isinstance(one, Text):
                texts.append(one.text)
                yield sse_event(_delta(one.text))
        reason = _reason(chunk) or reason
    text = "".join(texts)
    yield sse_event({"type": "transcript.text.done", "text": text, "finish_reason": reason, "usage": _usage(head)})


def _delta(text: str) -> dict[str, Any]:
    return {"type": "transcript.text.delta", "delta": text}


def _reason(chunk: ChatChunk) -> str | None:
    """Return the finish reason if this is the last chunk; "length" means a truncated transcript."""
    return next((one.reason for one in chunk.events if isinstance(one, Finished)), None)


def _usage(head: ReplyContext) -> dict[str, Any]:
    usage = head.running.usage()
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }
