"""GET /api/v0/models: models with their states."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import input_modalities
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.router import APIRouter

router = APIRouter()


@router.get("/api/v0/models")
async def list_models(request: Request) -> dict[str, Any]:
    """List all models."""
    models: ModelManager = request.app.state.models
    return {"object": "list", "data": [await _model(info, request) for info in await models.list()]}


@router.get("/api/v0/models/{id:path}")
async def one_model(id: str, request: Request) -> dict[str, Any]:
    """Describe a model."""
    models: ModelManager = request.app.state.models
    return await _model(await models.get(id), request)


async def _model(info: ModelInfo, request: Request) -> dict[str, Any]:
    state = request.app.state
    kinds = await input_modalities(info, state.settings, state.models.ready(info.name))
    generates = "vlm" if "image" in kinds else "llm"
    # Files from the hub have an alias with the repository.
    publisher = next((name.partition("/")[0] for name in info.aliases if "/" in name), "")
    return {
        "id": info.name,
        "object": "model",
        "type": {"completion": generates, "embedding": "embeddings"}.get(info.kind, info.kind),
        "publisher": publisher.removeprefix("hf:"),
        "arch": info.architecture,
        "compatibility_type": "gguf",
        "quantization": info.quantization,
        "state": "loaded" if info.loaded else "not-loaded",
        "max_context_length": info.n_ctx_train,
        **({"loaded_context_length": info.context_length} if info.loaded else {}),
        "capabilities": ["tool_use"] if "tools" in info.capabilities else [],
    }
