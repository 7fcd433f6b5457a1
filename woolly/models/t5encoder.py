"""T5 encoder: relative position biases, no other positions, unscaled attention scores."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox", causal=False)


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model. Layers without a position bias use the bias of the first layer."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"enc.blk.{i}"):
            q, k, v = parts.projections(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp.layers[i])
            distances = "attn_rel_b" if p.has("attn_rel_b") else "/enc.blk.0.attn_rel_b"
            head = hp.layers[i].head_dim
            a = p.attention(q, k, v, head_dim=head, scale=1.0, mask="all", distances=distances)
            x = x + p.linear(a, "attn_o", width=hp.width)
            x = x + feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.skip("output")
    parts.embeddings(p, p.rms_norm(x, "enc.output_norm", eps=hp.eps))


def feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build GeGLU, or an MLP with ReLU if the file has no gate."""
    if p.has("ffn_gate"):
        return parts.feed_forward(p, h, hp, layer, act="gelu")
    return parts.plain_feed_forward(p, h, hp, layer, act="relu")
