"""POST /embedding, /embeddings, /rerank, /reranking, /score and /classify, without /v1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request, Response
from pydantic import BaseModel, Field

from woolly.engine.pooling import PoolingJob
from woolly.llm import LLM
from woolly.serving.dialects.embeddings.bodies import EmbeddingsBody, Input, TextBody, as_texts
from woolly.serving.dialects.embeddings.embeddings import embeddings
from woolly.serving.dialects.embeddings.ranking import classify, rerank, score
from woolly.serving.dialects.embeddings.replies import (
    ClassifyReply,
    EmbeddingsReply,
    RankedText,
    RerankReply,
    ScoreReply,
)
from woolly.serving.dialects.reply import json_reply
from woolly.serving.errors import invalid_param
from woolly.serving.generation.pooling import run_pooling
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter

router = APIRouter()

_MAX_F16_LENGTH = 32760.0  # maximum absolute value with embd_normalize=0, as for int16


class EmbeddingBody(TextBody):
    """One or several texts, as `content` or `input`."""

    content: Input | None = None
    input: Input | None = Field(None, description="Same as content; /embeddings then replies in OpenAI's format.")
    embd_normalize: int | None = Field(
        None,
        description="Norm: -1: none, 0: maximum absolute value, 1: taxicab, 2 (default): Euclidean, p: p-norm.",
    )
    encoding_format: str | None = None
    dimensions: int | None = None


class LlamaEmbedding(BaseModel):
    """Embedding of a text, or of its tokens for models without pooling."""

    index: int
    embedding: list[list[float]]


async def embedding(body: EmbeddingBody, request: Request) -> Response:
    """Embed texts in llama-server's format, or their tokens for models without pooling."""
    given = body.content if body.content is not None else body.input
    if given is None:
        raise invalid_param("content", "expected a string or a list of strings")
    field = "content" if body.content is not None else "input"
    kind = 2 if body.embd_normalize is None else body.embd_normalize
    texts = as_texts(given)
    pooling = request.app.state.settings.pooling

    def prepare(llm: LLM) -> PoolingJob:
        if pooling is not None or llm.plan.pooling != "none":
            return llm.prepare_embedding(texts, dimensions=body.dimensions, pooling=pooling, truncate=body.cuts)
        if body.dimensions is not None:
            raise invalid_param("dimensions", "token embeddings are not truncated; remove it")
        return llm.prepare_token_embedding(texts, truncate=body.cuts)

    def finish(llm: LLM, job: PoolingJob) -> list[Any]:
        if pooling is None and llm.plan.pooling == "none":
            return [rows.tolist() for rows in job.all_rows()]  # llama-server does not normalize token embeddings
        rows = llm.embeddings(job, normalize=False, dimensions=body.dimensions)
        return [[row] for row in _rows(rows, kind=kind)]

    pooled = await run_pooling(request, body.model, ("embedding", "token_embedding"), prepare, finish, field=field)
    return json_reply([{"index": i, "embedding": rows} for i, rows in enumerate(pooled.result)], pooled.headers)


async def embeddings_by_shape(body: EmbeddingBody, request: Request) -> Response:
    """Embed texts: `content` returns llama-server's format, `input` OpenAI's.

    Token embeddings are always in llama-server's format, because OpenAI has none.
    """
    if body.content is not None or body.input is None:
        return await embedding(body, request)
    models: ModelManager = request.app.state.models
    by_file = request.app.state.settings.pooling is None
    if by_file and "token_embedding" in (await models.resolve(body.model, "embedding")).capabilities:
        return await embedding(body, request)
    fields = body.model_dump(exclude={"content", "embd_normalize"}, exclude_none=True)
    if body.encoding_format not in (None, "float", "base64"):
        raise invalid_param("encoding_format", "expected float or base64")
    return await embeddings(EmbeddingsBody(**fields), request)


def _rows(rows: npt.NDArray[np.float32], *, kind: int) -> list[Any]:
    """Return the embeddings with one of llama-server's normalizations."""
    wide = rows.astype(np.float64)
    size = np.abs(wide)
    if kind < 0:
        lengths = np.ones((len(wide), 1))
    elif kind == 0:
        lengths = size.max(axis=1, keepdims=True, initial=0.0) / _MAX_F16_LENGTH
    else:
        lengths = (size**kind).sum(axis=1, keepdims=True) ** (1 / kind)
    out: list[Any] = (wide / np.where(lengths == 0, 1.0, lengths)).astype(np.float32).tolist()
    return out


router.post("/embedding", responses={200: {"model": list[LlamaEmbedding]}}, response_model=None)(embedding)
router.post("/embeddings", responses={200: {"model": list[LlamaEmbedding] | EmbeddingsReply}}, response_model=None)(
    embeddings_by_shape
)
for _path in ("/rerank", "/reranking"):
    router.post(_path, responses={200: {"model": RerankReply | list[RankedText]}}, response_model=None)(rerank)
router.post("/score", responses={200: {"model": ScoreReply}}, response_model=None)(score)
router.post("/classify", responses={200: {"model": ClassifyReply}}, response_model=None)(classify)
