"""Trinity: gated attention, rope in sliding-window layers only, norms around blocks, MoE after dense layers."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, period=4)
    hp = hp.with_ropes(*((i + 1) % 4 != 0 for i in range(hp.n_layers)))
    return replace(hp, experts=read_experts(keys, normalize=False, scoring="sigmoid"))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width) * hp.width**0.5
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.gated_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + p.rms_norm(a, "post_attention_norm", eps=hp.eps)
            f = parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
            x = x + p.rms_norm(f, "post_ffw_norm", eps=hp.eps)
    p.output(parts.logits(p, x, hp))
