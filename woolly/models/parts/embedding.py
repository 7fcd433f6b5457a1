"""Embedding inputs of encoders: positions and token types."""

from __future__ import annotations

from woolly.models.params import TransformerParams
from woolly.models.parts.head import pooling_of
from woolly.plan import Handle, Tracer


def typed(p: Tracer, x: Handle, hp: TransformerParams) -> Handle:
    """Add the token type embedding to x if the file has one. The second text of a pair has type 1."""
    if not p.has("token_types"):
        return x
    return p.embed_token_type(x, "token_types", hp.separator if pooling_of(p) == "rank" else 0)
