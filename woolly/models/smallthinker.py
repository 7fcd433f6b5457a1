"""SmallThinker: the router reads the layer's input before attention; ReLU-gated experts; rope in window layers."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. With windows, every fourth layer, starting with the first, is global without rope."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, period=4, dense_first=True)
    if any(layer.window for layer in hp.layers):
        hp = hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
    return replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    if hp.experts is None:
        raise ModelError("the smallthinker file has no experts, so it is incomplete")
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            before = x
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            h = p.rms_norm(x, "ffn_norm", eps=hp.eps)
            x = x + parts.experts(p, h, hp.experts, act="relu", router_x=before)
    p.output(parts.logits(p, x, hp))
