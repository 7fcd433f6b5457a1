"""/v2/embed: embeddings of texts."""

from __future__ import annotations

import base64
import secrets
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.dialects.embeddings.embeddings import embed_texts
from woolly.serving.dialects.reply import json_reply
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore
from woolly.serving.router import APIRouter

router = APIRouter()


class EmbedBody(BaseModel):
    """Texts to embed, and the requested number formats."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    texts: Items[str]
    input_type: str | None = Field(None, description="Accepted without effect; clients must add prefixes themselves.")
    embedding_types: Items[str] | None = Field(None, description="float or base64.")
    output_dimension: int | None = None
    truncate: Literal["NONE", "END", "START"] | None = Field(None, description="END truncates texts that are too long.")
    priority: int | None = Field(None, description="Accepted without effect.")
    max_tokens: int | None = None


class EmbedReply(BaseModel):
    """Normalized embeddings by number format."""

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: dict[str, Any]


@router.post("/v2/embed", responses={200: {"model": EmbedReply}}, response_model=None)
async def embed(body: EmbedBody, request: Request) -> Response:
    """Embed texts in Cohere's format. By default, texts that are too long are rejected."""
    types = body.embedding_types or ["float"]
    for name in types:
        if name not in ("float", "base64"):
            raise invalid_param("embedding_types", f"expected float or base64, but got {name[:40]!r}")
    if body.truncate == "START":
        raise invalid_param("truncate", "expected END or NONE; only the end can be truncated")
    if body.max_tokens is not None:
        raise invalid_param("max_tokens", "texts are truncated at the model's maximum; remove it")
    if body.input_type is not None:
        ignore("input_type (clients must add prefixes themselves)")

    def write(rows: npt.NDArray[np.float32]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {
            "float": rows.tolist(),
            "base64": [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows],
        }
        return {name: made[name] for name in types}

    pooled = await embed_texts(
        request,
        body.model,
        body.texts,
        write,
        field="texts",
        dimensions=body.output_dimension,
        truncate=body.truncate == "END",
    )
    reply = {
        "id": secrets.token_hex(16),
        "response_type": "embeddings_by_type",
        "embeddings": pooled.result,
        "texts": body.texts,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": pooled.n_tokens}},
    }
    return json_reply(reply, pooled.headers)
