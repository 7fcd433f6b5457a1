"""Scales of LoRA adapters in llama-server's format: objects with `id` and `scale`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from woolly.serving.errors import ApiError

_MAX_ADAPTER_ID = 2**31 - 1


def adapter_scales(objects: Iterable[dict[str, Any]], param: str) -> dict[str | int, float]:
    """Return scales by adapter id, from llama-server's objects with `id` and `scale`."""
    scales: dict[str | int, float] = {}
    for one in objects:
        # The range is checked first, because hashes of large numbers collide.
        if one.keys() - {"id", "scale"} or type(one.get("id")) is not int or not 0 <= one["id"] <= _MAX_ADAPTER_ID:
            raise ApiError(
                400,
                "invalid_request",
                f"{param} has {one!r}; expected objects with an id from 0 to {_MAX_ADAPTER_ID} and a scale",
                param=param,
            )
        scales[one["id"]] = one.get("scale", 0.0)
    return scales
