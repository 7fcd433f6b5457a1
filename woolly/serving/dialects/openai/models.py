"""/v1/models: list of models."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fastapi import Request, Response

from woolly.serving.dialects.completions.replies import ReplyModel, ReplyModels
from woolly.serving.dialects.google_models import google_model, is_google
from woolly.serving.dialects.reply import json_reply
from woolly.serving.model_manager.modalities import input_modalities, llama_server_model, supports_video
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.router import APIRouter

router = APIRouter()


@router.get("/v1/models", response_model=ReplyModels)
async def list_models(request: Request) -> dict[str, Any] | Response:
    """Return all models."""
    if is_google(request):
        return json_reply({"models": [google_model(info) for info in await request.app.state.models.list()]})
    infos = await request.app.state.models.list()
    models = [await _model(info, request) for info in infos]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
    state = request.app.state
    claimed = [await llama_server_model(info, state.settings, state.models.ready(info.name)) for info in infos]
    return {"object": "list", "data": models, "models": claimed, "has_more": False, **ends}


@router.get("/v1/models/{id:path}", response_model=ReplyModel)
async def one_model(id: str, request: Request) -> dict[str, Any] | Response:
    """Return one model."""
    if is_google(request):
        return json_reply(google_model(await request.app.state.models.get(id)))
    return await _model(await request.app.state.models.get(id), request)


async def _model(info: ModelInfo, request: Request) -> dict[str, Any]:
    settings, slot = request.app.state.settings, request.app.state.models.ready(info.name)
    kinds = await input_modalities(info, settings, slot)
    if "image" in kinds and await supports_video(info, settings, slot):
        kinds.append("video")
    return {
        "id": info.name,
        "object": "model",
        "type": "model",
        "display_name": info.description,
        "created": info.created,
        "created_at": datetime.fromtimestamp(info.created, timezone.utc).isoformat().replace("+00:00", "Z"),
        "max_input_tokens": info.context_length,
        "max_tokens": info.context_length,
        "owned_by": "woolly",
        "aliases": list(info.aliases),
        "architecture": {"input_modalities": kinds, "output_modalities": ["text"]},
        "meta": {
            "architecture": info.architecture,
            "n_params": info.parameters,
            "size": info.size_bytes,
            "n_ctx": info.context_length,
            "loaded": info.loaded,
            "unsupported": info.unsupported,  # Woolly only: reason why the model cannot run
        },
    }
