"""gpt-oss: attention sinks, sliding windows in every other layer, biases, MoE with clamped SwiGLU."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("gpt-oss",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. YaRN's correction range is not rounded; files have no key for this."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, period=2)
    layers = tuple(replace(x, rope=x.rope and replace(x.rope, truncate=False)) for x in hp.layers)
    # Softmax over the top-k logits equals normalizing the softmax over all logits.
    return replace(hp, layers=layers, experts=read_experts(keys, normalize=True))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    if hp.experts is None:
        raise ModelError("the gpt-oss file has no experts, so it is incomplete")
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            h = p.rms_norm(x, "post_attention_norm", eps=hp.eps)
            x = x + parts.experts(p, h, hp.experts, act="clamped")
    parts.read_out(p, x, hp)
