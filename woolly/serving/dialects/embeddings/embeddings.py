"""Embeddings of texts, and OpenAI's reply."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request, Response

from woolly.engine.pooling import PoolingJob
from woolly.llm import LLM
from woolly.serving.dialects.embeddings.bodies import EmbeddingsBody, as_texts
from woolly.serving.dialects.embeddings.envelope import usage_fields
from woolly.serving.dialects.reply import json_bytes
from woolly.serving.generation.pooling import PoolingResult, run_pooling

Float32 = npt.NDArray[np.float32]


async def embed_texts(
    request: Request,
    model: str | None,
    texts: Sequence[Any],
    write: Callable[[Float32], Any],
    *,
    field: str = "input",
    dimensions: int | None = None,
    normalize: bool = True,
    truncate: bool = False,
) -> PoolingResult:
    """Embed texts and return the result of `write`, which runs on a thread because formatting numbers is slow."""

    def prepare(llm: LLM) -> PoolingJob:
        pooling = request.app.state.settings.pooling
        return llm.prepare_embedding(texts, dimensions=dimensions, pooling=pooling, truncate=truncate)

    def finish(llm: LLM, job: PoolingJob) -> Any:
        return write(llm.embeddings(job, normalize=normalize, dimensions=dimensions))

    return await run_pooling(request, model, ("embedding",), prepare, finish, field=field)


async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
    """Embed texts in OpenAI's format."""
    write = partial(encode_embeddings, as_base64=body.encoding_format == "base64")
    pooled = await embed_texts(
        request, body.model, as_texts(body.input), write, dimensions=body.dimensions, truncate=body.cuts
    )
    head = {"object": "list", "model": pooled.model.name, **usage_fields(pooled)}
    # The embeddings are already encoded as JSON.
    return Response(
        json_bytes(head)[:-1] + b',"data":[' + b",".join(pooled.result) + b"]}",
        media_type="application/json",
        headers=pooled.headers,
    )


def encode_embeddings(rows: Float32, *, as_base64: bool) -> list[bytes]:
    """Return each embedding as an OpenAI embedding object, encoded as JSON."""
    items = []
    for index, row in enumerate(rows):
        value = base64.b64encode(row.astype("<f4").tobytes()).decode() if as_base64 else row.tolist()
        items.append(json_bytes({"object": "embedding", "index": index, "embedding": value}))
    return items
