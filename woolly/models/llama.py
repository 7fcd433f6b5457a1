"""Llama 2 and 3, Mistral, SmolLM2, Yi and other models of this architecture; with experts: Mixtral."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("llama", "internlm2", "xverse")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "adjacent", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    parts.read_out(p, x, hp)
