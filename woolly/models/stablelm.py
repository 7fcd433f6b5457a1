"""StableLM: layer norms, partial rope. The 12B model has QK norm, and runs attention and MLP in parallel."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Without a second norm, attention and MLP run in parallel."""
    return read_transformer(keys, "neox", knows=("use_parallel_residual",), norm="layer")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.layer_norm(x, "attn_norm", eps=hp.eps)
            q, k, v = parts.projections(p, h, hp.layers[i])
            if p.has("attn_q_norm"):
                q, k = p.layer_norm(q, "attn_q_norm", eps=hp.eps), p.layer_norm(k, "attn_k_norm", eps=hp.eps)
            q, k = (parts.apply_rope(p, y, hp.layers[i]) for y in (q, k))
            x = x + p.linear(parts.attend(p, q, k, v, hp, i), "attn_output", width=hp.width)
            x = x + parts.feed_forward(p, p.layer_norm(x, "ffn_norm", eps=hp.eps) if p.has("ffn_norm") else h, hp, i)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
