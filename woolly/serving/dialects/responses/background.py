"""Responses in the background: they run without a client, and their events can be replayed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack

from fastapi import Request
from fastapi.responses import Response

from woolly.chat import ChatRequest
from woolly.serving.dialect import ChatDialect, dialect_of
from woolly.serving.dialects.reply import chat_frames, json_reply, open_chat, settle_error
from woolly.serving.dialects.responses.replies import Form, begun, failure
from woolly.serving.errors import invalid_param
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.resumable_streams import ResumableStreams
from woolly.serving.generation.sse import EventStreamResponse


async def answer_later(
    request: Request,
    dialect: ChatDialect,
    chat: ChatRequest,
    model: str,
    form: Form,
    asked_for: str | None,
    during: ExitStack,
) -> Response:
    """Start a response that runs without its client, and return it as queued, or its stream.

    `model` answers, `asked_for` is the name that the body has. The contexts in `during` are left when the response has
    ended. ApiError 429 or 503 immediately if there is no room.
    """
    generator: Generator = request.app.state.generator
    streams: ResumableStreams = request.app.state.streams
    store, owner = form.store, form.owner
    queued = {**begun(form, model), "status": "queued"}
    end = {**queued, "status": "cancelled"}  # unless the answer says how it ended
    admitted = during.enter_context(generator.admit(chat.params.n))

    def settle() -> None:
        if not store.has_ended(form.id):
            store.keep(owner, end, form.items, form.previous)

    async def begin(stack: AsyncExitStack) -> AsyncIterator[bytes]:
        stack.callback(settle)
        stack.enter_context(during.pop_all())
        stack.enter_context(store.running(owner, queued, form.items, lambda: streams.drop(form.id, owner)))
        try:
            head, chunks = await open_chat(stack, request, dialect, chat, admitted, model=asked_for, form=form)
        except Exception as error:
            end.update(failure(settle_error(error)))
            raise
        return chat_frames(dialect, chunks, head)

    kept = streams.start(form.id, owner, begin)
    if not form.is_stream:
        return json_reply(queued)
    await kept.opened()
    return EventStreamResponse(kept.read(), AsyncExitStack(), dialect.media_type)


async def stream_again(request: Request, id: str, starting_after: int | None) -> Response:
    """Return the events of a background response after an event number, until it ends.

    ApiError 400 if they are not kept, as for other responses.
    """
    streams: ResumableStreams = request.app.state.streams
    kept = streams.get(id, owner_of(request))
    if kept is None:
        raise invalid_param(
            "stream", "the events of this response are not kept: only those with background are, for a while"
        )
    await kept.opened()
    start = 0 if starting_after is None else kept.frame_end(starting_after)
    if start < kept.n_lost:
        raise invalid_param(
            "starting_after", "the events behind it are kept no longer; fetch the response without stream"
        )
    return EventStreamResponse(kept.read(start), AsyncExitStack(), dialect_of(request).media_type)
