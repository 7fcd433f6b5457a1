"""Known routes of other servers that Woolly lacks, and the suggestions in their 404."""

from __future__ import annotations

import difflib
import re

# Routes that users type. Collecting the app's routes would take seconds.
ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/embeddings", "/v1/responses", "/v1/messages"),
    *("/v1/rerank", "/v1/batches", "/v1/files", "/api/chat", "/api/generate", "/api/tags", "/health", "/metrics"),
    *("/completion", "/tokenize", "/models/load", "/models/unload"),
)

_SENTENCES = {
    "/v1/moderations": "there is no moderation here",
    "/v2/chat": "only Cohere's embeddings and reranking are supported: chat with POST /v1/chat/completions",
}

_BASE = re.compile(r"(/v1/v1|/api)/(chat/completions|completions|models|responses)/?")


def unsupported_reason(path: str) -> str | None:
    """Return why a route of another server is missing and what to use instead; None for an unknown path."""
    for kind in ("audio", "images"):
        if path.startswith(f"/v1/{kind}/"):
            return f"the models of this server generate text, not {kind}"
    if found := _BASE.fullmatch(path):
        return f"the route is /v1/{found[2]}: let the client's base address end with /v1, once"
    return _SENTENCES.get(path.rstrip("/"))


def no_such_route(path: str) -> str:
    """Return the message for an unknown path, with the closest route if there is one."""
    near = difflib.get_close_matches(path.rstrip("/")[:100], ROUTES, 1, 0.85)
    return f"no such route; did you mean {near[0]}?" if near else "no such route; GET /docs lists all routes"
