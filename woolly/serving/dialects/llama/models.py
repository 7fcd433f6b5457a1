"""GET /models, POST /models/load and /models/unload of llama-server."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict

from woolly.serving.gate.request_id import check_admin
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import llama_server_model
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.router import APIRouter

router = APIRouter()

_HUB = re.compile(r"[^:/]+/[^:/]+:[^:/]+")  # org/repo:QUANT
_STATUS = {"ready": "loaded", "loading": "loading", "unloading": "loaded", "unloaded": "unloaded"}


class ModelBody(BaseModel):
    """The name of a model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str


@router.get("/models")
async def list_models(request: Request, reload: int = Query(0, ge=0, le=1)) -> dict[str, Any]:
    """List all models with their states. `reload` has no effect, because the folder is read on every call."""
    models: ModelManager = request.app.state.models
    infos = await models.list()
    claimed = [await llama_server_model(info, request.app.state.settings, models.ready(info.name)) for info in infos]
    return {"object": "list", "data": [_model(info) for info in infos], "models": claimed}


@router.post("/models/load")
async def load_model(body: ModelBody, request: Request) -> dict[str, bool]:
    """Load a model, and reply when it is ready."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    await models.load(body.model)
    return {"success": True}


@router.post("/models/unload")
async def unload_model(body: ModelBody, request: Request) -> dict[str, bool]:
    """Unload a model, and reply when its requests have ended and its memory is free."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    await models.unload(body.model)
    return {"success": True}


def _model(info: ModelInfo) -> dict[str, Any]:
    # Files from the hub are listed with llama-server's name, which is accepted everywhere.
    shown = next((name for name in info.aliases if _HUB.fullmatch(name)), info.name)
    return {
        "id": info.name if info.given_names else shown,
        "model": shown,
        "aliases": list(info.given_names or info.aliases),
        "tags": list(info.tags),
        "object": "model",
        "created": info.created,
        "owned_by": "woolly",
        "status": {"value": _STATUS[info.state], **({"reason": info.unsupported} if info.unsupported else {})},
        "meta": {
            "n_ctx": info.context_length,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.parameters,
            "size": info.size_bytes,
        },
    }
