"""Transcription by Whisper and Parakeet: one engine request per window, replies with timestamps."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from woolly.errors import RequestError
from woolly.multimodal.inputs import AudioInput
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.openai.transcript_form import TranscriptForm
from woolly.serving.dialects.reply import json_reply, stream_reply
from woolly.serving.errors import to_api_error
from woolly.serving.gate.request_id import client_of, owner_of
from woolly.serving.generation.generator import GenerationRequest, Generator
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.observability.logs import log
from woolly.serving.sse import sse_event
from woolly.speech import DecodeRequest, Transcriber, Transcript, TranscriptSegment
from woolly.speech.async_segments import stream_segments
from woolly.speech.languages import NAMES

_PLAIN = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


async def answer_transcription(request: Request, form: TranscriptForm) -> Response:
    """Return the reply of a speech-to-text model, complete or as a stream of segments."""
    generator: Generator = request.app.state.generator
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit())
        slot = await stack.enter_async_context(request.app.state.models.use(form.model))
        try:
            audio = await run_in_thread(AudioInput(form.file, where="file").read, pool=generator.media_pool)
            transcriber = await run_in_thread(_prepare, slot.model, audio, form)
        except RequestError as error:
            raise to_api_error(error) from error

        async def run(asked: DecodeRequest) -> Sequence[int]:
            client, owner = client_of(request), owner_of(request)
            its = GenerationRequest(
                asked.params, asked.prompt, form.model, client=client, owner=owner, hooks=asked.hooks, is_part=True
            )
            async with generator.open(its, admitted, slot) as running:
                await running.completion()
                return running.requests[0].output

        segments = _logged(stream_segments(transcriber, run), transcriber, slot.info.name, client_of(request))
        if form.is_stream:
            return stream_reply(dialect_of(request), _frames(segments, transcriber), stack.pop_all())
        try:
            async for _ in segments:
                pass
        except RequestError as error:
            raise to_api_error(error) from error
        return _whole(transcriber.transcript, form)


async def _logged(
    segments: AsyncIterator[TranscriptSegment], transcriber: Transcriber, model: str, client: str
) -> AsyncIterator[TranscriptSegment]:
    """Yield the segments; at the end write one log line for all their engine requests."""
    try:
        async for one in segments:
            yield one
    finally:
        made = transcriber.transcript
        facts = {"client": client or None, "model": model, "seconds": round(made.seconds, 2)}
        tokens = {"prompt_tokens": made.n_prompt, "completion_tokens": made.n_output}
        log.info("transcribed", extra=facts | tokens | {"segments": len(made.segments)})


def _prepare(llm: Any, audio: Any, form: TranscriptForm) -> Transcriber:
    temperature = form.temperature or None  # 0 means temperature fallback, as in OpenAI's API
    options = {"language": form.language, "translate": form.is_translation, "prompt": form.prompt}
    options["word_timestamps"] = form.has_words
    made: Transcriber = llm.new_transcriber(audio, temperature=temperature, **options)
    return made


def _whole(made: Transcript, form: TranscriptForm) -> Response:
    if form.format in _PLAIN:
        text = made.text if form.format == "text" else made.subtitles(form.format)
        return Response(text, media_type=f"{_PLAIN[form.format]}; charset=utf-8")
    reply: dict[str, Any] = {"text": made.text, "finish_reason": "stop", "usage": _usage(made)}
    if form.format == "verbose_json":
        reply["usage"] |= {"type": "duration", "seconds": math.ceil(made.seconds)}
        language = "english" if form.is_translation else NAMES.get(made.language, made.language)
        task = "translate" if form.is_translation else "transcribe"
        reply |= {"task": task, "duration": made.seconds} | ({"language": language} if language else {})
        if form.has_segments:
            reply["segments"] = [_segment(i, one) for i, one in enumerate(made.segments)]
        if form.has_words:
            reply["words"] = [{"word": one.text, "start": one.start, "end": one.end} for one in made.words]
    return json_reply(reply)


def _segment(index: int, one: TranscriptSegment) -> dict[str, Any]:
    names = ("seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "compression_ratio")
    return {"id": index, **{name: getattr(one, name) for name in (*names, "no_speech_prob")}}


def _frames(segments: AsyncIterator[TranscriptSegment], transcriber: Transcriber) -> AsyncIterator[bytes]:
    """Yield server-sent events: the text of each segment, then the full text; empty deltas as heartbeats."""
    beat = sse_event({"type": "transcript.text.delta", "delta": ""})
    return with_heartbeats(_events(segments, transcriber), lambda: beat)


async def _events(segments: AsyncIterator[TranscriptSegment], transcriber: Transcriber) -> AsyncIterator[bytes]:
    is_first = True
    async for one in segments:
        yield sse_event({"type": "transcript.text.delta", "delta": one.text.lstrip() if is_first else one.text})
        is_first = False
    made = transcriber.transcript
    yield sse_event({"type": "transcript.text.done", "text": made.text, "finish_reason": "stop", "usage": _usage(made)})


def _usage(made: Transcript) -> dict[str, Any]:
    n, written = made.n_prompt, made.n_output
    return {"type": "tokens", "input_tokens": n, "output_tokens": written, "total_tokens": n + written}
