"""What replies about texts have in common."""

from __future__ import annotations

import secrets
import time
from typing import Any

from woolly.serving.generation.texts import ReadTexts


def told(read: ReadTexts) -> dict[str, Any]:
    """Returns the usage, and which texts were cut if some were."""
    usage = {"prompt_tokens": read.n_tokens, "total_tokens": read.n_tokens}
    return {"usage": usage, **({"truncated": list(read.cut)} if read.cut else {})}


def enveloped(read: ReadTexts, kind: str) -> dict[str, Any]:
    """Returns the fields around the result."""
    return {
        "id": f"{kind}-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": read.model.name,
        **told(read),
    }
