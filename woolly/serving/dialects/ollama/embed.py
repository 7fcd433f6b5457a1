"""/api/embed and /api/embeddings: embeddings of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.dialects.embeddings.embeddings import embed_texts
from woolly.serving.dialects.ollama.names import find_model
from woolly.serving.dialects.reply import json_reply
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.observability.logs import ignore
from woolly.serving.router import APIRouter

router = APIRouter()

_LATER = "set with --keep-alive"


class ModelBody(BaseModel):
    """Fields shared by both bodies."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    keep_alive: float | str | None = Field(None, description=f"Accepted; {_LATER}.")
    options: dict[str, Any] | None = Field(None, description="Accepted; options do not affect embeddings.")

    def note(self) -> None:
        """Record ignored fields."""
        if self.keep_alive is not None:
            ignore(f"keep_alive ({_LATER})")
        for name, value in (self.options or {}).items():
            if value is not None:
                ignore(f"options.{name}")


class EmbedBody(ModelBody):
    """Body of /api/embed."""

    input: str | Items[str]
    truncate: bool | None = Field(None, description="Truncate texts that are too long, instead of rejecting them.")
    dimensions: int | None = None


class EmbeddingBody(ModelBody):
    """Body of /api/embeddings."""

    prompt: str


class EmbedReply(BaseModel):
    """Normalized embeddings. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    truncated: list[int] | None = None


class EmbeddingReply(BaseModel):
    """Embedding that is not normalized."""

    embedding: list[float]


@router.post(
    "/api/embed", responses={200: {"model": EmbedReply}}, response_model=None, summary="Compute embeddings of texts"
)
async def embed(body: EmbedBody, request: Request) -> Response:
    """Embed texts."""
    body.note()
    await find_model(request, body.model, "embedding")
    texts = [body.input] if isinstance(body.input, str) else body.input
    pooled = await embed_texts(
        request, body.model, texts, _lists, dimensions=body.dimensions or None, truncate=bool(body.truncate)
    )
    return json_reply(
        {
            "model": body.model,
            "embeddings": pooled.result,
            "total_duration": int(1e9 * pooled.seconds),
            "load_duration": int(1e9 * pooled.load_seconds),
            "prompt_eval_count": pooled.n_tokens,
            **({"truncated": list(pooled.cut)} if pooled.cut else {}),
        },
        pooled.headers,
    )


@router.post(
    "/api/embeddings",
    responses={200: {"model": EmbeddingReply}},
    response_model=None,
    summary="Compute the embedding of a text",
)
async def embed_prompt(body: EmbeddingBody, request: Request) -> Response:
    """Embed a text without normalization, for older clients."""
    body.note()
    await find_model(request, body.model, "embedding")
    texts = [body.prompt] if body.prompt else []
    pooled = await embed_texts(request, body.model, texts, _lists, field="prompt", normalize=False)
    return json_reply({"embedding": pooled.result[0] if pooled.result else []})


def _lists(rows: npt.NDArray[np.float32]) -> list[Any]:
    out: list[Any] = rows.tolist()
    return out
