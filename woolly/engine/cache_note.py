"""Summary of the prefix cache hit of a prompt: cached tokens, reason for the miss, and text at the divergence."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.request import Request

_DIVERGED = re.compile(r"diverged at token (\d+)")
_SHOWN = 16  # tokens to quote from the divergence
_CHARACTERS = 60


def cache_note(request: Request, *, has_text: bool = True) -> str | None:
    """Return an ASCII line such as `192 of 250 tokens, diverged at token 201: "Today is Monday"`.

    Return None if the request has not started. Without `has_text`, the prompt is not quoted.
    """
    found = request.prefix
    if found is None:
        return None
    said = f"{found.hit_tokens} of {found.hit_tokens + found.miss_tokens} tokens"
    if found.reason is None:
        return said
    said += f", {found.reason}"
    if not has_text or (at := _DIVERGED.match(found.reason)) is None:
        return said
    ids = request.given[int(at[1]) : int(at[1]) + _SHOWN]
    text = "".join(request.detokenizer.text_of(id) for id in ids)
    return f"{said}: {json.dumps(text[:_CHARACTERS])}"
