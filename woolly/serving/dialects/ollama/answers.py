"""POST /api/chat and /api/generate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from fastapi import Request
from fastapi.responses import Response

from woolly.chat import Layout, ToolChoice
from woolly.errors import RequestError
from woolly.llm import ChatReader
from woolly.sampling import SamplingParams
from woolly.serving.answers.generation import Generation, Generator
from woolly.serving.dialect import Head, dialect_of
from woolly.serving.dialects.answer import answer_chat, json_reply, stream_reply
from woolly.serving.dialects.fill_in import fill_in
from woolly.serving.dialects.ollama.bodies import AnswerBody, ChatBody, GenerateBody
from woolly.serving.dialects.ollama.names import tagged
from woolly.serving.dialects.ollama.options import read_options
from woolly.serving.dialects.ollama.replies import Form, at_once
from woolly.serving.errors import of_exception
from woolly.serving.gate.identity import check_admin, client_of, owner_of
from woolly.serving.loading.manager import ModelInfo, ModelManager
from woolly.serving.router import APIRouter
from woolly.serving.watch.logs import ignore

__all__ = ["chat", "generate", "router"]

router = APIRouter()


@router.post("/api/chat", response_model=None, summary="Answer a conversation, as Ollama does")
async def chat(body: ChatBody, request: Request) -> Response:
    """Answers a conversation by lines of JSON; without messages, loads or unloads the model."""
    info = await request.app.state.models.answering(body.model)
    form = Form(_shown(body.model, info), "chat")
    if not body.messages:
        return await _prepare(request, body, info, form)
    _keep(request, body, info)
    asked = body.to_chat(await _params(request, body, info))
    return await answer_chat(
        request, dialect_of(request), asked, model=info.name, stream=body.stream is not False, form=form
    )


@router.post("/api/generate", response_model=None, summary="Answer a prompt, as Ollama does")
async def generate(body: GenerateBody, request: Request) -> Response:
    """Answers a prompt as a user's message, or continues it if `raw` is true; without one, as /api/chat."""
    info = await request.app.state.models.answering(body.model)
    form = Form(_shown(body.model, info), "generate")
    if not body.prompt and not body.suffix:
        return await _prepare(request, body, info, form)
    _keep(request, body, info)
    if body.context:
        ignore("context")
    body.check()
    params = await _params(request, body, info)
    if body.raw or body.suffix:
        return await _continue(request, body, params, info, form)
    return await answer_chat(
        request, dialect_of(request), body.to_chat(params), model=info.name, stream=body.stream is not False, form=form
    )


async def _continue(
    request: Request, body: GenerateBody, params: SamplingParams, info: ModelInfo, form: Form
) -> Response:
    """Returns the answer to a prompt that no template lays out: its text, or what belongs before its suffix."""
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    dialect = dialect_of(request)
    async with AsyncExitStack() as held:
        place = held.enter_context(generator.place())
        slot = await held.enter_async_context(models.use(info.name))
        layout = Layout(body.prompt, params, ToolChoice(), None, None, frozenset())
        prompt: Layout | Sequence[int] = layout
        if body.suffix:
            generator.check_characters(slot.model, [body.prompt, body.suffix])
            prompt = fill_in(slot.model.tokenizer, body.prompt, body.suffix)
        generation = Generation(
            params,
            layout if isinstance(prompt, Layout) else tuple(prompt),
            info.name,
            client=client_of(request),
            owner=owner_of(request),
        )
        try:
            running = await held.enter_async_context(generator.open(generation, place, slot))
        except RequestError as error:
            raise of_exception(error) from error
        reader = ChatReader(layout, running.requests)
        head, chunks = Head(running, layout, form), (reader.read(chunk) async for chunk in running)
        if body.stream is not False:
            return stream_reply(dialect, dialect.frames(chunks, head), held.pop_all())
        return json_reply(await dialect.whole(chunks, head))


async def _prepare(request: Request, body: AnswerBody, info: ModelInfo, form: Form) -> Response:
    models: ModelManager = request.app.state.models
    if body.is_leaving:
        check_admin(request)
        info = await models.get(body.model)  # not the model that would answer to any name
        await models.unload(info.name)
        return json_reply(at_once(form, "unload"))
    _keep(request, body, info)
    async with models.use(info.name):
        return json_reply(at_once(form, "load"))


def _shown(name: str, info: ModelInfo) -> str:
    """Returns the model's name as the client wrote it; its real one, if the client named another."""
    return name if info.has_name(name) else tagged(info.name)


def _keep(request: Request, body: AnswerBody, info: ModelInfo) -> None:
    """Sets how long the model stays loaded, if the client may unload models."""
    if body.kept is None:
        return
    if request.state.is_admin:
        request.app.state.models.keep(info.name, body.kept)
    else:
        ignore("keep_alive (this key may not unload models)")


async def _params(request: Request, body: AnswerBody, info: ModelInfo) -> SamplingParams:
    defaults = await request.app.state.generator.defaults_for(info.name)
    params = read_options(body.options, defaults, info.context_length)
    return replace(params, logprobs=body.top_logprobs or 0) if body.logprobs else params
