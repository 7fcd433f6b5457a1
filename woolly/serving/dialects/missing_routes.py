"""Known routes of other servers that Woolly lacks, and what their 404 suggests instead."""

from __future__ import annotations

import re

__all__ = ["why_absent"]

_SENTENCES = {
    "/v1/moderations": "there is no moderation here",
    "/v2/chat": "Cohere's API is here for vectors and ranks alone: chat by POST /v1/chat/completions",
}

_BASE = re.compile(r"(/v1/v1|/api)/(chat/completions|completions|models|responses)/?")


def why_absent(path: str) -> str | None:
    """Returns why a route of another server is missing and what to use instead; None for an unknown path."""
    for kind in ("audio", "images"):
        if path.startswith(f"/v1/{kind}/"):
            return f"the models here write text, and no {kind}"
    if found := _BASE.fullmatch(path):
        return f"the route is /v1/{found[2]}: let the client's base address end with /v1, once"
    return _SENTENCES.get(path.rstrip("/"))
