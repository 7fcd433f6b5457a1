"""Per-layer token embeddings of small Gemma models."""

from __future__ import annotations

import math

from woolly.models.params import TransformerParams
from woolly.plan import Handle, Tracer


def layer_inputs(p: Tracer, x: Handle, hp: TransformerParams, extra: int) -> Handle:
    """Return the per-layer embeddings, concatenated: rows of a second, memory-mapped table, plus a projection of x."""
    width = hp.n_layers * extra
    rows = p.embed("per_layer_token_embd", width=width) * math.sqrt(extra)
    part = p.linear(x, "per_layer_model_proj", width=width) * (1 / math.sqrt(x.width))
    return (p.rms_norm(part, "per_layer_proj_norm", eps=hp.eps) + rows) * math.sqrt(0.5)


def gated_input(p: Tracer, x: Handle, inputs: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Return the layer's embedding, gated by x and projected to the width of x."""
    extra = inputs.width // hp.n_layers
    own = p.slice(inputs, first=layer * extra, width=extra)
    gated = p.unary(p.linear(x, "inp_gate", width=extra), "gelu") * own
    return p.rms_norm(p.linear(gated, "proj", width=hp.width), "post_norm", eps=hp.eps)
