"""GET and DELETE /models, POST /models/load and /models/unload of llama-server."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict

from woolly.serving.errors import ApiError
from woolly.serving.gate.request_id import check_admin
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import llama_server_model
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.router import APIRouter

router = APIRouter()

_HUB = re.compile(r"[^:/]+/[^:/]+:[^:/]+")  # org/repo:QUANT
STATUS = {"ready": "loaded", "loading": "loading", "unloading": "loaded", "unloaded": "unloaded"}


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


@router.delete("/models")
async def delete_model(model: str, request: Request) -> dict[str, bool]:
    """Reject the request, because the server never deletes model files."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    info = await models.get(model)
    raise ApiError(
        403,
        "access_denied",
        f"{info.name} is not deleted: the server never deletes model files",
        param="model",
        suggestion="run `woolly rm` on the server",
    )


def model_id(info: ModelInfo) -> str:
    """Return the name of a model in lists and events."""
    return info.name if info.given_names else _hub_name(info)


def _hub_name(info: ModelInfo) -> str:
    """Return llama-server's name of a file from the hub, which is accepted everywhere, or else the model's name."""
    return next((name for name in info.aliases if _HUB.fullmatch(name)), info.name)


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": model_id(info),
        "model": _hub_name(info),
        "aliases": list(info.given_names or info.aliases),
        "tags": list(info.tags),
        "object": "model",
        "created": info.created,
        "owned_by": "woolly",
        "status": {"value": STATUS[info.state], **({"reason": info.unsupported} if info.unsupported else {})},
        "meta": {
            "n_ctx": info.context_length,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.parameters,
            "size": info.size_bytes,
        },
    }
