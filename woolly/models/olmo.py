"""OLMo 1: Llama with layer norms without weights, and clamped QKV."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "adjacent", knows=("attention.clamp_kqv",), norm="layer")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.layer_norm(x, eps=hp.eps), hp, i)
            x = x + parts.feed_forward(p, p.layer_norm(x, eps=hp.eps), hp, i)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), eps=hp.eps), hp))
