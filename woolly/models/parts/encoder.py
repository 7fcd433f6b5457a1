"""Post-norm layers of encoders."""

from __future__ import annotations

from collections.abc import Callable

from woolly.models.params import TransformerParams
from woolly.models.parts.attention import apply_rope, attend, projections
from woolly.plan import Handle, Tracer

FeedForward = Callable[[Tracer, Handle, TransformerParams, int], Handle]


def post_norm_layers(p: Tracer, x: Handle, hp: TransformerParams, feed_forward: FeedForward) -> Handle:
    """Build all layers. Optional: QK norm over all heads, and a second norm after adding the input again."""
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            q, k, v = projections(p, x, hp.layers[i])
            if p.has("attn_q_norm"):
                q, k = p.layer_norm(q, "attn_q_norm", eps=hp.eps), p.layer_norm(k, "attn_k_norm", eps=hp.eps)
            q, k = (apply_rope(p, y, hp.layers[i]) for y in (q, k))
            a = p.linear(attend(p, q, k, v, hp, i), "attn_output", width=hp.width)
            y = p.layer_norm(x + a, "attn_output_norm", eps=hp.eps)
            if p.has("attn_norm_2"):
                y = p.layer_norm(x + y, "attn_norm_2", eps=hp.eps)
            x = p.layer_norm(y + feed_forward(p, y, hp, i), "layer_output_norm", eps=hp.eps)
    return x
