"""Model names in Ollama's format, where a name without a tag means `:latest`."""

from __future__ import annotations

from fastapi import Request

from woolly.serving.errors import ApiError
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.model_info import Capability, ModelInfo


def tagged(name: str) -> str:
    """Return the name for lists, in which clients look for a tag."""
    return name if ":" in name else f"{name}:latest"


async def find_model(request: Request, name: str | None, can: Capability = "completion") -> ModelInfo:
    """Return the model of a name. Raises ApiError 404 for an unknown name, after which Ollama's clients pull the model.

    Other dialects use a model for the names of clouds, because their clients have built-in names.
    """
    models: ModelManager = request.app.state.models
    if not name:
        raise ApiError(400, "invalid_request", "model is required", param="model")
    try:
        return await models.get(name, can)
    except ApiError as error:
        if error.code != "model_not_found":
            raise
        known = ", ".join(tagged(info.name) for info in await models.list()) or "none"
        message = f"model {name[:200]!r} not found, try pulling it first; available: {known}"
        raise ApiError(404, "model_not_found", message, param="model", suggestion=error.suggestion) from None
