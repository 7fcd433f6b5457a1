"""GET /models, POST /models/{name}/load and /unload."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.machine.capacity import Capacity
from woolly.machine.memory import available_memory, total_memory
from woolly.runtime import get_backend
from woolly.serving.dialects.ole.client import wrapped
from woolly.serving.gate.request_id import check_admin
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import input_modalities, supports_video
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.router import APIRouter

_MODALITIES = (("image", "vision"), ("audio", "audio"))  # modality and its name in this API

router = APIRouter(prefix="/models")


class LoadBody(BaseModel):
    """Options for loading a model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str | None = Field(default=None, description="File path relative to the models folder.")
    config: dict[str, Any] | None = Field(default=None, description="Settings for this model, such as ctx_size")


@router.get("", summary="List the models")
async def list_models(request: Request) -> Any:
    """List models without loading them. Ole gets `{"success": true, "data": [...]}`."""
    models: ModelManager = request.app.state.models
    capacity = await asyncio.to_thread(server_capacity, models)
    return wrapped(request, [await _shape(info, request, capacity) for info in await models.list()])


@router.get("/{name:path}", summary="Describe a model")
async def get_model(name: str, request: Request) -> dict[str, Any]:
    """Describe a model; `loaded` and `current` select the loaded model."""
    models: ModelManager = request.app.state.models
    return await _shape(await models.get(name), request)


@router.post("/{name:path}/load", summary="Load a model")
async def load_model(name: str, request: Request, body: LoadBody | None = None) -> dict[str, Any]:
    """Load a model, and reply when it is ready. Paths outside of the models folder are rejected."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    body = body or LoadBody()
    info = await models.load(name, path=body.path, config=body.config)
    return {"success": True, "message": f"{info.name} is loaded", "model_info": await _shape(info, request)}


@router.post("/{name:path}/unload", summary="Unload a model")
async def unload_model(name: str, request: Request) -> dict[str, Any]:
    """Unload a model, and reply when its requests have ended and its memory is free."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    info = await models.unload(name)
    return {"success": True, "message": f"{info.name} is unloaded", "model_info": await _shape(info, request)}


@cache
def _has_gpu() -> bool:
    return get_backend("auto").name not in ("cpu", "reference")


def server_capacity(models: ModelManager) -> Capacity | None:
    """Return the memory available for a model, including loaded models, or None if a GPU may hold part of it."""
    if _has_gpu():
        return None
    loaded = sum(slot.n_bytes for slot in models.loaded_models)
    return Capacity(available_memory() + loaded, total_memory(), 0)


async def _shape(info: ModelInfo, request: Request, capacity: Capacity | None = None) -> dict[str, Any]:
    state = request.app.state
    slot = state.models.ready(info.name)
    kinds = await input_modalities(info, state.settings, slot)
    modalities = [word for kind, word in _MODALITIES if kind in kinds]
    if "image" in kinds and await supports_video(info, state.settings, slot):
        modalities.append("video")
    return {
        "name": info.name,
        "aliases": list(info.aliases),
        "description": info.description,
        "path": info.path.name,  # relative to the models folder, whose path is private
        "loaded": info.loaded,
        "unsupported": info.unsupported,
        "state": info.state,
        "stage": info.stage,
        "progress": info.progress,
        "size_bytes": info.size_bytes,
        "parameters": info.parameters,
        "quantization": info.quantization,
        "fits": None if capacity is None else capacity.fit(info.size_bytes, is_here=True),
        "architecture": info.architecture,
        "context_length": info.context_length,
        "capabilities": [*info.capabilities, *modalities],
        "metadata": dict(info.metadata),
    }
