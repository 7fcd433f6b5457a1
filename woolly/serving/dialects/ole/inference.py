"""POST /inference/complete, /inference/chat and /inference/stream, with replies in OpenAI's format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import HTTPConnection

from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext, dialect_of
from woolly.serving.dialects.completions.chat import chat_completions
from woolly.serving.dialects.completions.messages import Message
from woolly.serving.dialects.completions.replies import ChatReply, CompletionReply
from woolly.serving.dialects.completions.text import text_completions
from woolly.serving.dialects.ole.bodies import InferenceBody
from woolly.serving.dialects.ole.conversation import conversation
from woolly.serving.dialects.reply import json_reply, open_chat, stream_reply
from woolly.serving.errors import invalid_param
from woolly.serving.router import APIRouter

router = APIRouter()

_EITHER: dict[int | str, dict[str, Any]] = {200: {"model": ChatReply | CompletionReply}}


@router.post("/inference/complete", summary="Complete a prompt", responses=_EITHER, response_model=None)
async def answer_prompt(body: InferenceBody, request: Request) -> Response:
    """Complete a prompt, or answer messages as a chat."""
    return await _answer(body, request, body.sent(chat=False))


@router.post("/inference/chat", summary="Answer a chat", responses={200: {"model": ChatReply}}, response_model=None)
async def answer_chat(body: InferenceBody, request: Request) -> Response:
    """Answer a chat. With `session_id`, the server stores it, and clients send only new messages."""
    return await _answer(body, request, body.sent(chat=True))


@router.post("/inference/stream", summary="Answer as a stream", response_model=None)
async def answer_stream(body: InferenceBody, request: Request) -> Response:
    """Complete a prompt or answer messages as a stream."""
    if body.stream is False:
        raise invalid_param("stream", "this route always streams; remove it or send true")
    body = body.model_copy(update={"stream": True})
    return await _answer(body, request, body.sent(chat=False))


# Routes of earlier clients, with OpenAI's fields.
router.post("/optimized/chat/completions", responses={200: {"model": ChatReply}}, response_model=None)(chat_completions)
router.post("/optimized/completions", responses={200: {"model": CompletionReply}}, response_model=None)(
    text_completions
)


@asynccontextmanager
async def open_reply(
    connection: HTTPConnection, body: InferenceBody, sent: list[Message]
) -> AsyncIterator[tuple[ReplyContext, AsyncIterator[ChatChunk]]]:
    """Yield the context and the chunks of a running answer, which ends with the block."""
    if body.session_id is not None and (body.n or 1) > 1:
        raise invalid_param("n", "a session supports only one answer")
    body.check()
    generator = connection.app.state.generator
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit(body.n or 1))
        talk = await stack.enter_async_context(conversation(connection, body.session_id, sent))
        head, chunks = await open_chat(
            stack,
            connection,
            dialect_of(connection),
            body.to_chat(await generator.defaults_for(body.model or talk.model), talk.messages),
            admitted,
            model=body.model or talk.model,
            form=body.form(talk.session_id),
        )
        yield head, talk.keep(chunks, head)


async def _answer(body: InferenceBody, request: Request, sent: list[Message] | None) -> Response:
    if sent is None:
        return await text_completions(body.to_completion(), request)
    dialect = dialect_of(request)
    async with AsyncExitStack() as stack:
        head, chunks = await stack.enter_async_context(open_reply(request, body, sent))
        if body.stream:
            return stream_reply(dialect, dialect.frames(chunks, head), stack.pop_all())
        return json_reply(await dialect.full_reply(chunks, head))
