"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from woolly.errors import RequestError
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.anthropic.bodies import CountBody, MessagesBody
from woolly.serving.dialects.anthropic.context import Edited, edit_messages
from woolly.serving.dialects.anthropic.messages import Message
from woolly.serving.dialects.anthropic.replies import Form
from woolly.serving.dialects.reply import answer_chat
from woolly.serving.errors import to_api_error
from woolly.serving.generation.generator import Generator
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.observability.logs import request_id
from woolly.serving.router import APIRouter

router = APIRouter()


@router.post("/v1/messages", response_model=None, summary="Create a message")
async def messages(body: MessagesBody, request: Request) -> Response:
    """Answer a chat; `stream` selects server-sent events."""
    generator: Generator = request.app.state.generator
    defaults = await generator.defaults_for(body.model)
    params = body.params(defaults)
    with ExitStack() as during:
        admitted = during.enter_context(generator.admit(params.n))
        edited = await _edited(body, request)
        chat = body.to_chat(params, None if edited is None else edited.messages)
        thinking = body.thinking
        form = Form(
            body.max_tokens,
            tuple(body.stop_sequences or ()),
            hides_thinking=thinking is not None and thinking.display == "omitted",
            edits=None if edited is None else edited.applied,
        )
        reply = await answer_chat(
            request,
            dialect_of(request),
            chat,
            model=body.model,
            stream=bool(body.stream),
            form=form,
            score_only=body.max_tokens == 0,
            during=during,
            admitted=admitted,
        )
    reply.headers["request-id"] = request_id.get()
    return reply


@router.post("/v1/messages/count_tokens", summary="Count the tokens of a message")
async def count_tokens(body: CountBody, request: Request) -> dict[str, Any]:
    """Count the tokens of the rendered prompt, including tools, after the requested edits."""
    edited = await _edited(body, request)
    if edited is None:
        return {"input_tokens": await _count(body, body.messages, request)}
    n = await _count(body, edited.messages, request) if edited.n_after is None else edited.n_after
    before = n if edited.n_before is None else edited.n_before
    return {"input_tokens": n, "context_management": {"original_input_tokens": before}}


async def _count(body: CountBody, talk: Sequence[Message], request: Request) -> int:
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    chat = body.to_chat(await generator.defaults_for(body.model), talk)
    async with models.use(body.model) as slot, generator.texts:
        generator.check_characters(slot.model, [_texts(body)])
        try:
            layout = await generator.format_chat(chat, slot, body.model)
        except RequestError as error:
            raise to_api_error(error, {"prompt": "messages", **dialect_of(request).fields}) from error
        return await generator.count_tokens(layout, slot)


async def _edited(body: CountBody, request: Request) -> Edited | None:
    """Return the chat after the body's edits, or None without edits."""
    if body.context_management is None:
        return None

    async def count(talk: Sequence[Message]) -> int:
        return await _count(body, talk, request)

    return await edit_messages(body.context_management, body.messages, count)


def _texts(body: CountBody) -> Any:
    return body.model_dump(include={"messages", "system", "tools"})
