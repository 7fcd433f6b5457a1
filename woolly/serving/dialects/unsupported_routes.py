"""Known routes of other servers that are not supported, and suggestions for their 404 errors."""

from __future__ import annotations

import difflib
import re

# Routes to suggest for typos; collecting the app's routes would take seconds.
ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/embeddings", "/v1/responses", "/v1/messages"),
    *("/v1/rerank", "/v1/batches", "/v1/files", "/api/chat", "/api/generate", "/api/tags", "/health", "/metrics"),
    *("/completion", "/tokenize", "/models/load", "/models/unload"),
)

_SENTENCES = {
    "/v1/moderations": "moderation is not supported",
    "/v2/chat": "only Cohere's embeddings and reranking are supported; for chats, use POST /v1/chat/completions",
}

_BASE = re.compile(r"(/v1/v1|/api)/(chat/completions|completions|models|responses)/?")


def unsupported_reason(path: str) -> str | None:
    """Return why a route of another server is missing and what to use instead, or None for an unknown path."""
    for kind in ("audio", "images"):
        if path.startswith(f"/v1/{kind}/"):
            return f"the models of this server generate text, not {kind}"
    if found := _BASE.fullmatch(path):
        return f"the route is /v1/{found[2]}; set the client's base URL to end with a single /v1"
    return _SENTENCES.get(path.rstrip("/"))


def no_such_route(path: str) -> str:
    """Return the error message of an unknown path, with the closest route if there is one."""
    near = difflib.get_close_matches(path.rstrip("/")[:100], ROUTES, 1, 0.85)
    return f"unknown route; did you mean {near[0]}?" if near else "unknown route; see GET /docs"
