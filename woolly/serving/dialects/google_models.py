"""Models in Google's format, for the Gemini dialect and for Google's clients at /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from woolly.serving.model_manager.model_info import ModelInfo


def is_google(request: Request) -> bool:
    """Return True for Google's client, which expects a different reply at /v1/models than OpenAI's client."""
    return "x-goog-api-client" in request.headers or "x-goog-api-key" in request.headers


def google_model(info: ModelInfo) -> dict[str, Any]:
    """Return a model in Gemini's format."""
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
