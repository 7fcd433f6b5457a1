"""POST /api/chat and /api/generate."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import replace

from fastapi import Request
from fastapi.responses import Response

from woolly.chat import ChatFormat, ToolChoice
from woolly.errors import RequestError
from woolly.llm import ChatReader
from woolly.sampling import SamplingParams
from woolly.serving.dialect import ReplyContext, dialect_of
from woolly.serving.dialects.fill_in import fill_in
from woolly.serving.dialects.ollama.bodies import AnswerBody, ChatBody, GenerateBody
from woolly.serving.dialects.ollama.context import format_turn
from woolly.serving.dialects.ollama.models import can_think
from woolly.serving.dialects.ollama.names import find_model
from woolly.serving.dialects.ollama.options import read_options
from woolly.serving.dialects.ollama.replies import Form, load_reply
from woolly.serving.dialects.reply import answer_chat, json_reply, stream_reply
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.gate.request_id import check_admin, client_of, owner_of
from woolly.serving.generation.generator import GenerationRequest, Generator
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.observability.logs import ignore
from woolly.serving.router import APIRouter

router = APIRouter()


@router.post("/api/chat", response_model=None, summary="Answer a chat (Ollama)")
async def chat(body: ChatBody, request: Request) -> Response:
    """Answer a chat in JSON lines. Without messages, load or unload the model."""
    info = await find_model(request, body.model)
    form = Form(body.model, "chat")
    if not body.messages:
        return await _prepare(request, body, info, form)
    _keep(request, body, info)
    await _check_thinking(request, body, info)
    asked = body.to_chat(await _params(request, body, info))
    return await answer_chat(
        request, dialect_of(request), asked, model=body.model, stream=body.stream is not False, form=form
    )


@router.post("/api/generate", response_model=None, summary="Answer a prompt (Ollama)")
async def generate(body: GenerateBody, request: Request) -> Response:
    """Answer a prompt as a user message, or complete it with `raw`. Without a prompt, load or unload the model."""
    info = await find_model(request, body.model)
    form = Form(body.model, "generate", has_context=not body.raw and not body.suffix)
    if not body.prompt and not body.suffix:
        return await _prepare(request, body, info, form)
    _keep(request, body, info)
    body.check()
    await _check_thinking(request, body, info)
    params = await _params(request, body, info)
    if body.raw or body.suffix or body.context:
        return await _continue(request, body, params, info, form)
    return await answer_chat(
        request, dialect_of(request), body.to_chat(params), model=body.model, stream=body.stream is not False, form=form
    )


async def _continue(
    request: Request, body: GenerateBody, params: SamplingParams, info: ModelInfo, form: Form
) -> Response:
    """Answer a raw prompt, a prompt with a suffix, or a later turn."""
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    dialect = dialect_of(request)
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit())
        started = time.monotonic()
        slot = await stack.enter_async_context(models.use(info))
        load_seconds = time.monotonic() - started
        bound = params if body.answer_schema is None else replace(params, json_schema=body.answer_schema)
        layout = ChatFormat(body.prompt, bound, ToolChoice(), None, None, frozenset())
        before: tuple[int, ...] = ()
        gap: tuple[int, ...] = ()
        if body.suffix:
            generator.check_characters(slot.model, [body.prompt, body.suffix])
            gap = tuple(fill_in(slot.model.tokenizer, body.prompt, body.suffix))
        try:
            if body.context:
                layout, before = await format_turn(generator, body.to_chat(params), body.context, slot)
            generation = GenerationRequest(
                layout.params,
                gap or layout,
                info.name,
                client=client_of(request),
                owner=owner_of(request),
                context_ids=before,
            )
            running = await stack.enter_async_context(generator.open(generation, admitted, slot))
        except RequestError as error:
            raise to_api_error(error, {"json_schema": "format", **dialect.fields}) from error
        reader = ChatReader(layout, running.requests)
        head, chunks = (
            ReplyContext(running, layout, form, load_seconds),
            (reader.read(chunk) async for chunk in running),
        )
        if body.stream is not False:
            return stream_reply(dialect, dialect.frames(chunks, head), stack.pop_all())
        return json_reply(await dialect.full_reply(chunks, head))


async def _prepare(request: Request, body: AnswerBody, info: ModelInfo, form: Form) -> Response:
    models: ModelManager = request.app.state.models
    if body.is_leaving:
        check_admin(request)
        await models.unload(info.name)
        return json_reply(load_reply(form, "unload", 0.0))
    _keep(request, body, info)
    started = time.monotonic()
    async with models.use(info):
        return json_reply(load_reply(form, "load", time.monotonic() - started))


async def _check_thinking(request: Request, body: AnswerBody, info: ModelInfo) -> None:
    """Raise Ollama's error if reasoning is requested for a model that does not support it."""
    if body.think and not await can_think(request, info):
        raise ApiError(400, "invalid_request", f"{body.model[:200]!r} does not support thinking", param="think")


def _keep(request: Request, body: AnswerBody, info: ModelInfo) -> None:
    """Set the model's keep-alive if the client may unload models."""
    if body.kept is None:
        return
    if request.state.is_admin:
        request.app.state.models.set_keep_alive(info.name, body.kept)
    else:
        ignore("keep_alive (this key may not unload models)")


async def _params(request: Request, body: AnswerBody, info: ModelInfo) -> SamplingParams:
    defaults = await request.app.state.generator.defaults_for(body.model)
    params = read_options(body.options, defaults, info.context_length)
    return replace(params, logprobs=body.top_logprobs or 0) if body.logprobs else params
