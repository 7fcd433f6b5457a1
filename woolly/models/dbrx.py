"""DBRX: layer norms without biases, clamped QKV, MoE in every layer."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "attention.clamp_kqv"), norm="layer")
    return replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    if hp.experts is None:
        raise ModelError("the dbrx file has no experts, so it is incomplete")
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.layer_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.experts(p, p.layer_norm(x, "attn_output_norm", eps=hp.eps), hp.experts)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
