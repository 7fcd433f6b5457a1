"""OLMo 2 and 3: post-norm, QK norm over all heads. In OLMo 3, sliding-window layers have rope without YaRN."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    base = keys.number("rope.freq_base", 10000.0)
    hp = read_transformer(keys, "neox", period=4, local_base=base)
    if not keys.has("rope.scaling.attn_factor"):
        return hp
    # The file's factor replaces YaRN's magnitude: a multiplier of 1 cancels the computed one.
    ropes = [layer.rope and replace(layer.rope, log_multiplier=1.0) for layer in hp.layers]
    return replace(hp, layers=tuple(replace(x, rope=rope) for x, rope in zip(hp.layers, ropes, strict=True)))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.self_attention(p, x, hp, i, qk_norm=True)
            x = x + p.rms_norm(a, "post_attention_norm", eps=hp.eps)
            x = x + p.rms_norm(parts.feed_forward(p, x, hp, i), "post_ffw_norm", eps=hp.eps)
    parts.read_out(p, x, hp)
