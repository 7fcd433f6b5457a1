"""Responses in the background: they run to their end while nobody waits, and their events can be read again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack

from fastapi import Request
from fastapi.responses import Response

from woolly.chat import ChatRequest
from woolly.serving.dialect import ChatDialect, dialect_of
from woolly.serving.dialects.answer import chat_frames, json_reply, open_chat, settle_error
from woolly.serving.dialects.responses.replies import Form, begun, failure
from woolly.serving.errors import invalid_param
from woolly.serving.gate.identity import owner_of
from woolly.serving.generation.events import EventStream
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.kept_streams import KeptStreams


async def answer_later(
    request: Request,
    dialect: ChatDialect,
    chat: ChatRequest,
    model: str,
    form: Form,
    asked_for: str | None,
    during: ExitStack,
) -> Response:
    """Starts a response that goes on without its client, and returns it as it is queued, or its stream.

    `model` answers, `asked_for` is the name that the body has. What `during` holds is left when the response has ended.
    ApiError 429 or 503 at once if there is no room.
    """
    generator: Generator = request.app.state.generator
    streams: KeptStreams = request.app.state.streams
    store, owner = form.store, form.owner
    queued = {**begun(form, model), "status": "queued"}
    end = {**queued, "status": "cancelled"}  # unless the answer says how it ended
    place = during.enter_context(generator.place(chat.params.n))

    def settle() -> None:
        if not store.has_ended(form.id):
            store.keep(owner, end, form.items, form.previous)

    async def begin(held: AsyncExitStack) -> AsyncIterator[bytes]:
        held.callback(settle)
        held.enter_context(during.pop_all())
        held.enter_context(store.running(owner, queued, form.items, lambda: streams.drop(form.id, owner)))
        try:
            head, chunks = await open_chat(held, request, dialect, chat, place, model=asked_for, form=form)
        except Exception as error:
            end.update(failure(settle_error(error)))
            raise
        return chat_frames(dialect, chunks, head)

    kept = streams.start(form.id, owner, begin)
    if not form.is_stream:
        return json_reply(queued)
    await kept.opened()
    return EventStream(kept.read(), AsyncExitStack(), dialect.media_type)


async def stream_again(request: Request, id: str, starting_after: int | None) -> Response:
    """Returns the events of a response in the background behind that with a number, until it ends.

    ApiError 400 if they are not kept: those of other responses never are.
    """
    streams: KeptStreams = request.app.state.streams
    kept = streams.get(id, owner_of(request))
    if kept is None:
        raise invalid_param(
            "stream", "the events of this response are not kept: only those with background are, for a while"
        )
    await kept.opened()
    start = 0 if starting_after is None else kept.end_of(starting_after)
    if start < kept.n_lost:
        raise invalid_param(
            "starting_after", "the events behind it are kept no longer; fetch the response without stream"
        )
    return EventStream(kept.read(start), AsyncExitStack(), dialect_of(request).media_type)
