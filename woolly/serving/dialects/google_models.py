"""Models in Google's format, for the routes of Gemini's dialect and for Google's clients at OpenAI's /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from woolly.serving.model_manager.model_info import ModelInfo


def is_google(request: Request) -> bool:
    """Return True for Google's client: OpenAI's uses /v1/models too, with another reply."""
    return "x-goog-api-client" in request.headers or "x-goog-api-key" in request.headers


def google_model(info: ModelInfo) -> dict[str, Any]:
    """Return a model as Gemini's API describes it."""
    own = {"completion": ["generateContent", "streamGenerateContent", "countTokens"], "transcription": []}
    methods = own.get(info.kind, ["embedContent"])
    return {
        "name": f"models/{info.name}",
        "baseModelId": info.base or info.name,
        "version": "1",
        "displayName": info.description,
        "description": f"{info.architecture}, {info.parameters} weights",
        "inputTokenLimit": info.context_length,
        "outputTokenLimit": info.context_length,
        "supportedGenerationMethods": methods,
    }
