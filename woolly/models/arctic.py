"""Arctic: Llama with a parallel MoE branch, which reads the layer input after a separate norm."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. The dense MLP is as wide as the model; the width in the file is the experts' width."""
    hp = read_transformer(keys, "adjacent", knows=EXPERT_KEYS)
    layers = tuple(replace(layer, ffn=hp.width) for layer in hp.layers)
    return replace(hp, layers=layers, experts=read_experts(keys, normalize=True, ffn=hp.ffn))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    if hp.experts is None:
        raise ModelError("the arctic file has no experts, so it is incomplete")
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            e = parts.experts(p, p.rms_norm(x, "ffn_norm_exps", eps=hp.eps), hp.experts)
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i) + e
    p.output(parts.logits(p, x, hp))
