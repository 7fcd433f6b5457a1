"""Fields shared by a reply and all chunks of its stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from woolly import __version__
from woolly.serving.generation.running_request import RunningRequest

BUILD = f"b{__version__}-woolly"  # llama-server's clients parse a build number after the b


class Envelope:
    """Id, type, time and model of a reply."""

    def __init__(self, prefix: str, kind: str, running: RunningRequest) -> None:
        """`prefix` begins the id, `kind` is the `object` field. The id also identifies the running request."""
        running.reply_id = f"{prefix}-{secrets.token_urlsafe(22)}"
        self._fields: dict[str, Any] = {
            "id": running.reply_id,
            "object": kind,
            "created": int(time.time()),
            "model": running.model.name,
            "system_fingerprint": BUILD,
        }

    def around(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """Return a reply or chunk with these choices."""
        return {**self._fields, "choices": list(choices), **more}


def usage_of(runnings: Sequence[RunningRequest]) -> dict[str, Any]:
    """Return the token counts of one or several requests."""
    each = [running.usage() for running in runnings]
    n_prompt = sum(usage["prompt_tokens"] for usage in each)
    n_completion = sum(usage["completion_tokens"] for usage in each)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage["cached_tokens"] for usage in each)},
    }


def timings_of(runnings: Sequence[RunningRequest]) -> dict[str, float]:
    """Return the timings of a request, or of the slowest of several requests."""
    return max((running.timings() for running in runnings), key=lambda timings: timings.get("predicted_ms", 0.0))
