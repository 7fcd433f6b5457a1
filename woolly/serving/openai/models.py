"""/v1/models: which models there are."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from woolly.serving.models import ModelInfo
from woolly.serving.openai.replies import ReplyModel, ReplyModels

__all__ = ["list_models", "one_model", "router"]

router = APIRouter()


@router.get("/v1/models", response_model=ReplyModels)
async def list_models(request: Request) -> dict[str, Any]:
    """Every model that can be asked for."""
    return {"object": "list", "data": [_model(info) for info in await request.app.state.models.list()]}


@router.get("/v1/models/{id:path}", response_model=ReplyModel)
async def one_model(id: str, request: Request) -> dict[str, Any]:
    """One model by its name."""
    return _model(await request.app.state.models.get(id))


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "model",
        "created": info.created,
        "owned_by": "woolly",
        "aliases": list(info.aliases),
        "meta": {
            "architecture": info.architecture,
            "n_params": info.parameters,
            "size": info.size_bytes,
            "n_ctx": info.context_length,
            "loaded": info.loaded,
        },
    }
