"""POST /v1/responses, and routes for stored responses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from woolly.errors import RequestError
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.reply import answer_chat, json_reply, stream_reply
from woolly.serving.dialects.responses.background import answer_later, stream_again
from woolly.serving.dialects.responses.bodies import ResponseBody
from woolly.serving.dialects.responses.compaction import compacted, noting, reject_with_trigger, without_trigger
from woolly.serving.dialects.responses.conversations import conversations_of, new_items
from woolly.serving.dialects.responses.replies import Form, failed_frames
from woolly.serving.dialects.responses.store import store_of
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.generator import Generator
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter

router = APIRouter()

Data = dict[str, Any]


class ResponseReply(BaseModel):
    """Response with the fields that are always present."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


async def create(body: ResponseBody, request: Request) -> Response:
    """Answer a message or items; `stream` selects server-sent events."""
    locked = ExitStack()  # holds the lock of the conversation during the answer
    try:
        return await _answer(body, request, locked)
    except BaseException:
        locked.close()
        raise


async def _answer(body: ResponseBody, request: Request, locked: ExitStack) -> Response:
    store, owner, dialect = store_of(request), owner_of(request), dialect_of(request)
    toolbox = body.toolbox()
    own, is_compaction = without_trigger(_own(body, request))
    body.check()
    if is_compaction:
        _check_compaction(body, ("conversation", "background"))
    if (id := body.conversation_id) is not None:
        earlier = locked.enter_context(conversations_of(request).answering(owner, id, own))
    else:
        earlier = _earlier(body, request)
    form = Form.of(body, toolbox, own, store, conversations_of(request), owner, is_compaction=is_compaction)
    info = await request.app.state.models.resolve(body.model)
    chat = body.to_chat(await request.app.state.generator.defaults_for(body.model), [*earlier, *own], toolbox)
    if is_compaction:
        chat, _ = await noting(request, chat, body.model)
    if body.background:
        return await answer_later(request, dialect, chat, info.name, form, body.model, locked)
    try:
        return await answer_chat(
            request, dialect, chat, model=body.model, stream=bool(body.stream), form=form, during=locked
        )
    except ApiError as error:
        # Codex ends its turn after a status 400, but a failed stream makes it compact the chat.
        if not body.stream or error.code != "context_length_exceeded":
            raise
        locked.close()
        return stream_reply(dialect, failed_frames(form, info.name, error), AsyncExitStack())


async def compact(body: ResponseBody, request: Request) -> Data:
    """Return a compacted chat: the latest user messages and a summary by the model."""
    _check_compaction(body, ("stream", "conversation", "background"))
    body.check()
    toolbox = body.toolbox()
    own, _ = without_trigger(_own(body, request))
    items = [*_earlier(body, request), *own]
    form = Form.of(body, toolbox, own, store_of(request), conversations_of(request), owner_of(request))
    chat = body.to_chat(await request.app.state.generator.defaults_for(body.model), items, toolbox)
    asked, ctx = await noting(request, chat, body.model)
    return await compacted(request, asked, body.model, form, items, ctx)


def _check_compaction(body: ResponseBody, names: Sequence[str]) -> None:
    for name in names:
        if getattr(body, name):
            raise reject_with_trigger(name)


async def count(body: ResponseBody, request: Request) -> Data:
    """Count the tokens of the rendered prompt, including tools."""
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    items = [*_earlier(body, request), *_own(body, request)]
    chat = body.to_chat(await generator.defaults_for(body.model), items, body.toolbox())
    async with models.use(body.model) as slot, generator.texts:
        generator.check_characters(slot.model, [items, body.instructions, body.tools])
        try:
            layout = await generator.format_chat(chat, slot, body.model)
        except RequestError as error:
            raise to_api_error(error, {"prompt": "input", **dialect_of(request).fields}) from error
        return {"object": "response.input_tokens", "input_tokens": await generator.count_tokens(layout, slot)}


async def retrieve(
    id: str, request: Request, stream: bool = Query(False), starting_after: int | None = Query(None, ge=0, le=2**53)
) -> Response:
    """Return a stored or running response; `stream` replays the events of a background response."""
    response = store_of(request).get(owner_of(request), id)
    return await stream_again(request, id, starting_after) if stream else json_reply(response)


async def delete(id: str, request: Request) -> Data:
    """Delete a stored response; a running response returns 409."""
    store_of(request).delete(owner_of(request), id)
    return {"id": id, "object": "response", "deleted": True}


async def cancel(id: str, request: Request) -> Data:
    """Cancel a running response."""
    return store_of(request).cancel(owner_of(request), id)


async def list_items(id: str, request: Request) -> Data:
    """Return the input items of a stored or running response, newest first."""
    items = list(reversed(store_of(request).items(owner_of(request), id)))
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return {"object": "list", "data": items, "has_more": False, **ends}


def _own(body: ResponseBody, request: Request) -> list[Data]:
    """Return the input items of the body, with ids if the body continues a conversation."""
    items = store_of(request).resolved(owner_of(request), body.items)
    return items if body.conversation_id is None else new_items(items)


def _earlier(body: ResponseBody, request: Request) -> list[Data]:
    """Return all items before the input, from the conversation or the previous responses."""
    if (id := body.conversation_id) is not None:
        return list(conversations_of(request).get(owner_of(request), id).items.values())
    id = body.previous_response_id
    return store_of(request).conversation(owner_of(request), id) if id else []


for _base in ("/v1/responses", "/responses"):
    router.post(_base, responses={200: {"model": ResponseReply}}, response_model=None)(create)
    router.post(f"{_base}/input_tokens")(count)
    router.post(f"{_base}/compact")(compact)
    router.get(f"{_base}/{{id}}", responses={200: {"model": ResponseReply}}, response_model=None)(retrieve)
    router.delete(f"{_base}/{{id}}")(delete)
    router.post(f"{_base}/{{id}}/cancel")(cancel)
    router.get(f"{_base}/{{id}}/input_items")(list_items)
