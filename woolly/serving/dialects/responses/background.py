"""Background responses, which run without a client and whose events can be replayed."""

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
from woolly.serving.sse import EventStreamResponse


async def answer_later(
    request: Request,
    dialect: ChatDialect,
    chat: ChatRequest,
    model: str,
    form: Form,
    asked_for: str | None,
    during: ExitStack,
) -> Response:
    """Start a background response, and return it with status queued, or its stream.

    `model` is the resolved model and `asked_for` the name in the body. The contexts in `during` are closed when the
    response ends. Raises ApiError 429 or 503 immediately if there is no capacity.
    """
    generator: Generator = request.app.state.generator
    streams: ResumableStreams = request.app.state.streams
    store, owner = form.store, form.owner
    queued = {**begun(form, model), "status": "queued"}
    end = {**queued, "status": "cancelled"}  # replaced when the answer ends
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

    Raises ApiError 400 if the events are not stored; only background responses store them.
    """
    streams: ResumableStreams = request.app.state.streams
    kept = streams.get(id, owner_of(request))
    if kept is None:
        raise invalid_param(
            "stream",
            "the events of this response are not stored; only background responses can be replayed, for a limited time",
        )
    await kept.opened()
    start = 0 if starting_after is None else kept.frame_end(starting_after)
    if start < kept.n_lost:
        raise invalid_param(
            "starting_after", "the following events are no longer stored; fetch the response without stream"
        )
    return EventStreamResponse(kept.read(start), AsyncExitStack(), dialect_of(request).media_type)
