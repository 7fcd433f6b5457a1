"""POST /inference/complete, /inference/chat and /inference/stream: Ole's fields, OpenAI's replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.requests import HTTPConnection

from woolly.serving.ole.bodies import InferenceBody
from woolly.serving.ole.client import client_of
from woolly.serving.ole.conversation import conversation
from woolly.serving.ole.replies import Reply
from woolly.serving.openai.chat import chat_completions
from woolly.serving.openai.completions import completions
from woolly.serving.openai.layout import open_chat
from woolly.serving.openai.messages import Message
from woolly.serving.openai.replies import ChatReply, CompletionReply
from woolly.serving.openai.schema import refuse
from woolly.serving.openai.stream import json_reply, sse

__all__ = ["answer_chat", "answer_prompt", "answer_stream", "open_reply", "router"]

router = APIRouter()

_EITHER: dict[int | str, dict[str, Any]] = {200: {"model": ChatReply | CompletionReply}}


@router.post("/inference/complete", summary="Continue a prompt", responses=_EITHER, response_model=None)
async def answer_prompt(body: InferenceBody, request: Request) -> Response:
    """Messages, where they are sent, are answered as a conversation."""
    return await _answer(body, request, body.sent(chat=False))


@router.post(
    "/inference/chat", summary="Answer a conversation", responses={200: {"model": ChatReply}}, response_model=None
)
async def answer_chat(body: InferenceBody, request: Request) -> Response:
    """With `session_id`, the server keeps the conversation and only what is new is sent."""
    return await _answer(body, request, body.sent(chat=True))


@router.post("/inference/stream", summary="Answer by server-sent events", response_model=None)
async def answer_stream(body: InferenceBody, request: Request) -> Response:
    """A prompt is continued, messages are answered; always as a stream."""
    if body.stream is False:
        raise refuse("stream", "it is false, but this route always streams")
    body = body.model_copy(update={"stream": True})
    return await _answer(body, request, body.sent(chat=False))


# The routes of earlier clients: the same engine, OpenAI's fields.
router.post("/optimized/chat/completions", responses={200: {"model": ChatReply}}, response_model=None)(chat_completions)
router.post("/optimized/completions", responses={200: {"model": CompletionReply}}, response_model=None)(completions)


@asynccontextmanager
async def open_reply(connection: HTTPConnection, body: InferenceBody, sent: list[Message]) -> AsyncIterator[Reply]:
    """A conversation that is being answered, for as long as the block runs."""
    if body.session_id is not None and (body.n or 1) > 1:
        raise refuse("n", "a session goes on with one answer")
    body.check()
    state = connection.app.state
    async with AsyncExitStack() as stack:
        place = stack.enter_context(state.generator.place(body.n or 1))
        talk = await stack.enter_async_context(conversation(connection, body.session_id, sent))
        chat = body.as_chat(talk.messages, body.model or talk.model)
        layout, running = await open_chat(stack, state, chat, place, client_of(connection))
        yield Reply(layout, running, talk)


async def _answer(body: InferenceBody, request: Request, sent: list[Message] | None) -> Response:
    if sent is None:
        return await completions(body.as_completion(), request)
    async with AsyncExitStack() as held:
        reply = await held.enter_async_context(open_reply(request, body, sent))
        if body.stream:
            return sse(request, reply.chunks(body), held.pop_all())
        return json_reply(await reply.whole())
