"""Replies to chats: runs a ChatRequest and formats the answer for a dialect."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from fastapi.responses import Response
from starlette.requests import HTTPConnection

from woolly.chat import ChatRequest
from woolly.errors import RequestError
from woolly.llm import ChatChunk, ChatReader
from woolly.serving.dialect import ChatDialect, Dialect, ReplyContext
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.gate.request_id import client_of, owner_of
from woolly.serving.generation.admission import Admitted
from woolly.serving.generation.generator import GenerationRequest, Generator
from woolly.serving.generation.resumable_streams import ResumableStreams
from woolly.serving.generation.token_constraints import UNCONSTRAINED
from woolly.serving.observability.logs import log
from woolly.serving.sse import EventStreamResponse


async def answer_chat(
    connection: HTTPConnection,
    dialect: ChatDialect,
    chat: ChatRequest,
    *,
    model: str | None = None,
    stream: bool = False,
    form: Any = None,
    id_slot: int | None = None,
    score_only: bool = False,
    during: ExitStack | None = None,
    admitted: Admitted | None = None,
) -> Response:
    """Return the reply to a chat, complete or streamed. `form` is available to the dialect in `ReplyContext.form`.

    With `score_only`, no answer is generated, and the prompt is only computed to fill the cache. The contexts in
    `during` are closed when the answer ends; if the answer fails to start, the caller must close them. If the caller
    passes `admitted`, it must be part of `during`.
    """
    generator: Generator = connection.app.state.generator

    async def begin(stack: AsyncExitStack) -> tuple[ReplyContext, AsyncIterator[ChatChunk]]:
        if during is not None:
            stack.enter_context(during.pop_all())
        room = stack.enter_context(generator.admit(chat.params.n)) if admitted is None else admitted
        return await open_chat(
            stack, connection, dialect, chat, room, model=model, form=form, id_slot=id_slot, score_only=score_only
        )

    async def begin_frames(stack: AsyncExitStack) -> AsyncIterator[bytes]:
        head, chunks = await begin(stack)
        return chat_frames(dialect, chunks, head)

    if stream and (conversation := connection.headers.get("x-conversation-id")):
        streams: ResumableStreams = connection.app.state.streams
        kept = await streams.open(conversation, owner_of(connection), begin_frames)
        return EventStreamResponse(kept.read(), AsyncExitStack(), dialect.media_type)
    async with AsyncExitStack() as stack:
        if stream:
            return EventStreamResponse(await begin_frames(stack), stack.pop_all(), dialect.media_type)
        head, chunks = await begin(stack)
        reply = await dialect.full_reply(chunks, head)
        note = head.running.cache_note()
        return json_reply(reply, {"x-woolly-cache": note} if note else None)


async def open_chat(
    stack: AsyncExitStack,
    connection: HTTPConnection,
    dialect: ChatDialect,
    chat: ChatRequest,
    admitted: Admitted,
    *,
    model: str | None,
    form: Any,
    id_slot: int | None = None,
    score_only: bool = False,
) -> tuple[ReplyContext, AsyncIterator[ChatChunk]]:
    """Start an answer and return its context and chunks. The answer ends when `stack` is closed.

    Errors name the invalid field of the body.
    """
    state = connection.app.state
    generator: Generator = state.generator
    started = time.monotonic()
    slot = await stack.enter_async_context(state.models.use(model))
    load_seconds = time.monotonic() - started
    names = {"prompt": "messages", **dialect.fields}
    try:
        layout = await generator.format_chat(chat, slot, model)
        if layout.made_of is not None:  # the client does not know this grammar
            names |= dict.fromkeys(("json_schema", "lark"), names.get(layout.made_of, layout.made_of))
        generation = GenerationRequest(
            layout.params,
            layout,
            model,
            score_only=score_only,
            client=client_of(connection),
            owner=owner_of(connection),
            id_slot=-1 if id_slot is None else id_slot,
            reports_progress=getattr(form, "has_progress", False),
            token_constraints=getattr(form, "token_constraints", UNCONSTRAINED),
        )
        running = await stack.enter_async_context(generator.open(generation, admitted, slot))
    except RequestError as error:
        raise to_api_error(error, names) from error
    reader = ChatReader(layout, running.requests)
    return ReplyContext(running, layout, form, load_seconds), (reader.read(chunk) async for chunk in running)


def chat_frames(dialect: ChatDialect, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield the frames of an answer; an error becomes the last frame."""
    return _guarded(dialect, dialect.frames(chunks, head))


def stream_reply(dialect: Dialect, frames: AsyncIterator[bytes], stack: AsyncExitStack) -> EventStreamResponse:
    """Return a stream in which an error becomes the last frame; `stack` is closed at the end."""
    return EventStreamResponse(_guarded(dialect, frames), stack, dialect.media_type)


async def _guarded(dialect: Dialect, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for frame in frames:
            yield frame
    except Exception as error:
        yield dialect.error_frame(settle_error(error))


def settle_error(error: Exception) -> ApiError:
    """Return the error for the client of a failed stream, and log internal errors."""
    api_error = to_api_error(error)
    if api_error.status >= 500 and not isinstance(error, ApiError):
        log.error("stream failed", exc_info=error)
    return api_error


def json_reply(content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a plain JSON reply without FastAPI's second validation."""
    return Response(json_bytes(content), media_type="application/json", headers=dict(headers or {}))


def json_bytes(content: Any) -> bytes:
    """Serialize compact JSON; invalid Unicode becomes a question mark."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
