"""PLaMo 3: norms before and after blocks, QK norm per head, seven sliding-window layers per global layer."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox", period=8, local_base=10000.0)


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, qk_norm=True)
            x = x + p.rms_norm(a, "post_attention_norm", eps=hp.eps)
            f = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
            x = x + p.rms_norm(f, "post_ffw_norm", eps=hp.eps)
    p.output(parts.logits(p, x, hp))
