"""NeoBERT: pre-norm, rope, SwiGLU; fused QKV, fused gate and up."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("neo-bert",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "adjacent", causal=False)


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    parts.embeddings(p, p.rms_norm(x, "enc.output_norm", eps=hp.eps))
