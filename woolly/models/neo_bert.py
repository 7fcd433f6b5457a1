"""NeoBERT: norms before, rotary positions, SwiGLU; q, k and v in one matrix, gate and up in another."""

from __future__ import annotations

from woolly.models import parts
from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("neo-bert",)


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    return read_transformer(keys, "adjacent", causal=False)


def build(p: Tracer, hp: TransformerParams) -> None:
    """The whole model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    parts.embeddings(p, p.rms_norm(x, "enc.output_norm", eps=hp.eps))
