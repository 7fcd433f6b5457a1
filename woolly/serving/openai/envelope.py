"""The Envelope: what is the same in a reply and in every chunk of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from woolly import __version__
from woolly.serving.generation import Running

__all__ = ["Envelope", "timings_of", "usage_of"]


class Envelope:
    """The id, kind, time and model of one reply."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        """`prefix` is of the id, `kind` the `object`."""
        self._fields: dict[str, Any] = {
            "id": f"{prefix}-{secrets.token_urlsafe(22)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"woolly-{__version__}",
        }

    def around(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """A reply, or a chunk."""
        return {**self._fields, "choices": list(choices), **more}


def usage_of(runnings: Sequence[Running]) -> dict[str, Any]:
    """Tokens of one request or of several."""
    each = [running.usage() for running in runnings]
    n_prompt = sum(usage["prompt_tokens"] for usage in each)
    n_completion = sum(usage["completion_tokens"] for usage in each)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage["cached_tokens"] for usage in each)},
    }


def timings_of(runnings: Sequence[Running]) -> dict[str, float]:
    """Timings of one request; of several, those of the last to end."""
    return max((running.timings() for running in runnings), key=lambda timings: timings.get("predicted_ms", 0.0))
