"""Transcripts: what a model writes about an audio clip, as a whole reply and as the events of a stream."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi.responses import Response

from woolly.chat import Finished, Text
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.answer import json_reply
from woolly.serving.dialects.completions.replies import Reply
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.openai.transcript_form import TranscriptForm
from woolly.serving.generation.events import event


class TranscriptUsage(Reply):
    """Tokens that were read and written; of verbose_json, the seconds that were heard, too."""

    type: Literal["tokens", "duration"]
    seconds: int | None = None
    input_tokens: int
    output_tokens: int
    total_tokens: int


class TranscriptReply(Reply):
    """What was said. The fields from `task` on are those of verbose_json."""

    text: str
    finish_reason: str | None
    usage: TranscriptUsage
    task: Literal["transcribe", "translate"] | None = None
    duration: float | None = None
    language: str | None = None
    segments: list[dict[str, Any]] | None = None  # of a model that transcribes
    words: list[dict[str, Any]] | None = None


async def whole(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Response:
    """Returns the reply in the format that the form asks for. Thoughts of a model are left out."""
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
        # A model does not say which language it heard: the reply has one only if the form gave it.
        language = "english" if form.is_translation else form.language
        reply |= {} if language is None else {"language": language}
    return json_reply(reply)


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yields server-sent events: the text piece by piece, then as a whole; empty pieces while there are none."""
    beat = event(_delta(""))
    return with_heartbeats(_frames(chunks, head), lambda: beat)


async def _frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    texts: list[str] = []
    reason: str | None = None
    async for chunk in chunks:
        for one in chunk.events:
            if isinstance(one, Text):
                texts.append(one.text)
                yield event(_delta(one.text))
        reason = _reason(chunk) or reason
    text = "".join(texts)
    yield event({"type": "transcript.text.done", "text": text, "finish_reason": reason, "usage": _usage(head)})


def _delta(text: str) -> dict[str, Any]:
    return {"type": "transcript.text.delta", "delta": text}


def _reason(chunk: ChatChunk) -> str | None:
    """Returns why the answer ended, if this chunk is its last: "length" is a transcript that was cut."""
    return next((one.reason for one in chunk.events if isinstance(one, Finished)), None)


def _usage(head: ReplyContext) -> dict[str, Any]:
    usage = head.running.usage()
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }
