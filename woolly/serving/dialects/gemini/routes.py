"""/v1beta/models and methods of a model: generateContent, streamGenerateContent, countTokens, embedContent."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request
from fastapi.responses import Response

from woolly.errors import RequestError
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.embeddings.embeddings import embed_texts
from woolly.serving.dialects.gemini.bodies import CountBody, EmbedBodies, EmbedBody, GenerateBody
from woolly.serving.dialects.gemini.contents import text_of
from woolly.serving.dialects.gemini.replies import Form
from woolly.serving.dialects.google_models import google_model
from woolly.serving.dialects.reply import answer_chat, json_reply
from woolly.serving.errors import invalid_param, to_api_error
from woolly.serving.generation.generator import Generator
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.observability.logs import ignore
from woolly.serving.router import APIRouter

router = APIRouter()

_MODELS = "/v1beta/models"
_STABLE = "/v1/models"  # path used by newer clients; the OpenAI dialect lists models there


@router.post(f"{_MODELS}/{{model:path}}:generateContent", response_model=None, summary="Answer a chat (Gemini)")
@router.post(f"{_STABLE}/{{model:path}}:generateContent", response_model=None, include_in_schema=False)
async def generate(model: str, body: GenerateBody, request: Request) -> Response:
    """Answer a chat with one response."""
    return await _answer(model, body, request, stream=False)


@router.post(
    f"{_MODELS}/{{model:path}}:streamGenerateContent", response_model=None, summary="Stream an answer (Gemini)"
)
@router.post(f"{_STABLE}/{{model:path}}:streamGenerateContent", response_model=None, include_in_schema=False)
async def stream(model: str, body: GenerateBody, request: Request) -> Response:
    """Answer a chat with server-sent events; requires `alt=sse`."""
    if request.query_params.get("alt") != "sse":
        raise invalid_param("alt", "only server-sent events are supported; use ?alt=sse")
    return await _answer(model, body, request, stream=True)


@router.post(f"{_MODELS}/{{model:path}}:countTokens", summary="Count the tokens of a prompt (Gemini)")
@router.post(f"{_STABLE}/{{model:path}}:countTokens", include_in_schema=False)
async def count(model: str, body: CountBody, request: Request) -> dict[str, Any]:
    """Count the tokens of the rendered prompt, including functions."""
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    asked = body.generate_content_request or body
    chat = asked.to_chat(await generator.defaults_for(model))
    async with models.use(model) as slot, generator.texts:
        texts = asked.model_dump(include={"contents", "system_instruction", "tools"})
        generator.check_characters(slot.model, [texts])
        try:
            layout = await generator.format_chat(chat, slot, model)
        except RequestError as error:
            raise to_api_error(error, {"prompt": "contents", **dialect_of(request).fields}) from error
        n_tokens = await generator.count_tokens(layout, slot)
    return {"totalTokens": n_tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": n_tokens}]}


@router.post(f"{_MODELS}/{{model:path}}:embedContent", response_model=None, summary="Embed a text (Gemini)")
@router.post(f"{_STABLE}/{{model:path}}:embedContent", response_model=None, include_in_schema=False)
async def embed(model: str, body: EmbedBody, request: Request) -> Response:
    """Embed a text."""
    (values,) = await _embed(model, [body], request)
    return json_reply({"embedding": {"values": values}})


@router.post(f"{_MODELS}/{{model:path}}:batchEmbedContents", response_model=None, summary="Embed texts (Gemini)")
@router.post(f"{_STABLE}/{{model:path}}:batchEmbedContents", response_model=None, include_in_schema=False)
async def embed_all(model: str, body: EmbedBodies, request: Request) -> Response:
    """Embed texts."""
    return json_reply({"embeddings": [{"values": values} for values in await _embed(model, body.requests, request)]})


@router.get(_MODELS, summary="List the models (Gemini)")
async def list_models(request: Request) -> dict[str, Any]:
    """List all models."""
    return {"models": [google_model(info) for info in await request.app.state.models.list()]}


@router.get(f"{_MODELS}/{{model:path}}", summary="Describe a model (Gemini)")
async def one_model(model: str, request: Request) -> dict[str, Any]:
    """Describe a model."""
    return google_model(await request.app.state.models.get(model))


async def _answer(model: str, body: GenerateBody, request: Request, *, stream: bool) -> Response:
    chat = body.to_chat(await request.app.state.generator.defaults_for(model))
    form = Form(bool(body.config.thinking.include_thoughts), bool(body.config.response_logprobs))
    return await answer_chat(request, dialect_of(request), chat, model=model, stream=stream, form=form)


async def _embed(model: str, bodies: list[EmbedBody], request: Request) -> list[Any]:
    sizes = {body.output_dimensionality for body in bodies}
    if len(sizes) > 1:
        raise invalid_param(
            "requests.outputDimensionality",
            "must be the same in all requests of a batch; send a separate batch for each value",
        )
    for name in ("task_type", "title"):
        if any(getattr(body, name) for body in bodies):
            ignore({"task_type": "taskType"}.get(name, name))
    texts = [text_of(body.content, f"requests.{i}.content") for i, body in enumerate(bodies)]
    truncate = any(body.auto_truncate for body in bodies)
    read = await embed_texts(request, model, texts, _lists, field="content", dimensions=sizes.pop(), truncate=truncate)
    found: list[Any] = read.result
    return found


def _lists(rows: npt.NDArray[np.float32]) -> list[Any]:
    out: list[Any] = rows.tolist()
    return out
