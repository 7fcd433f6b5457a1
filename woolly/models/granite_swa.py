"""Granite with sliding windows: attention sinks in every layer, rope only in layers listed in the file."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models.granite import GraniteParams, read_granite
from woolly.models.granite import build as build
from woolly.models.granite import injection as injection


def read(keys: Keys) -> GraniteParams:
    """Read the parameters."""
    if not keys.has("attention.sliding_window_pattern"):
        raise ModelError(f"metadata key {keys.architecture}.attention.sliding_window_pattern is missing")
    out = read_granite(keys, period=1)
    if not keys.has("attention.rope_pattern"):
        return out
    has_rope = keys.pattern("attention.rope_pattern", out.common.n_layers, 0)
    return replace(out, common=out.common.with_ropes(*has_rope))
