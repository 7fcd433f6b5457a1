"""Fields shared by the replies to embedding, reranking and classification requests."""

from __future__ import annotations

import secrets
import time
from typing import Any

from woolly.serving.generation.pooling import PoolingResult


def usage_fields(pooled: PoolingResult) -> dict[str, Any]:
    """Return the usage, and the indices of truncated texts if there are any."""
    usage = {"prompt_tokens": pooled.n_tokens, "total_tokens": pooled.n_tokens}
    return {"usage": usage, **({"truncated": list(pooled.cut)} if pooled.cut else {})}


def enveloped(pooled: PoolingResult, kind: str) -> dict[str, Any]:
    """Return the fields of a reply other than its results."""
    return {
        "id": f"{kind}-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": pooled.model.name,
        **usage_fields(pooled),
    }
