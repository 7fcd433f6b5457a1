"""Routes of other servers that are not here: whoever asks for one is told what there is instead."""

from __future__ import annotations

import re

__all__ = ["why_absent"]

_OLLAMA = "Ollama's own API is not spoken here"
_EMBEDDINGS = "there are no embeddings here; the hidden states of a layer are in the Python library, as LLM.hidden"
_RERANK = "there is no reranking here"
_MEDIA = "there are no images and no audio here"

_CHAT = "POST /v1/chat/completions answers a conversation"
_PROMPT = "POST /v1/completions continues a prompt"
_MODELS = "GET /v1/models lists the models"
_LOAD = "POST /api/v1/models/{name}/load loads a model"

_SENTENCES = {
    "/api/generate": f"{_OLLAMA}; {_PROMPT}",
    "/api/chat": f"{_OLLAMA}; {_CHAT}",
    "/api/tags": f"{_OLLAMA}; {_MODELS}",
    "/api/ps": f"{_OLLAMA}; {_MODELS}",
    "/api/show": f"{_OLLAMA}; {_MODELS}",
    "/api/version": f"{_OLLAMA}; GET /health tells the version",
    "/api/pull": f"{_OLLAMA}, and models come by `woolly pull`, never by a request; {_LOAD}",
    "/api/embed": _EMBEDDINGS,
    "/api/embeddings": _EMBEDDINGS,
    "/embedding": _EMBEDDINGS,
    "/embeddings": _EMBEDDINGS,
    "/v1/embeddings": _EMBEDDINGS,
    "/rerank": _RERANK,
    "/reranking": _RERANK,
    "/v1/rerank": _RERANK,
    "/v1/reranking": _RERANK,
    "/v1/responses": f"OpenAI's responses are not spoken here; {_CHAT}",
    "/v1/messages": f"Anthropic's API is not spoken here; {_CHAT}",
    "/v1/moderations": "there is no moderation here",
}

_BASE = re.compile(r"(/v1/v1|/api)?/(chat/completions|completions|models)/?")


def why_absent(path: str) -> str | None:
    """Why a route of another server is not here, and what to use instead; None for one that nobody has."""
    if path.startswith(("/v1/audio/", "/v1/images/")):
        return _MEDIA
    if found := _BASE.fullmatch(path):
        return f"the route is /v1/{found[2]}: let the client's base address end with /v1, once"
    return _SENTENCES.get(path.rstrip("/"))
