"""Gemma 2: norms before and after each block, sliding windows in every other layer, softcaps of scores and logits."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(
        keys, "neox", knows=("attn_logit_softcapping", "final_logit_softcapping"), period=2, window=4096
    )
    # The 27B model, recognized by its number of layers, scales scores by width instead of head size.
    if hp.n_layers == 46:
        hp = replace(hp, layers=tuple(replace(x, scale=(hp.width / x.heads) ** -0.5) for x in hp.layers))
    return replace(
        hp,
        softcap=keys.number("attn_logit_softcapping", 50.0),
        logit_softcap=keys.number("final_logit_softcapping", 30.0),
    )


def build(p: Tracer, hp: TransformerParams, *, qk_norm: bool = False) -> None:
    """Build the model. VaultGemma has no norms after the blocks."""
    x = p.embed("token_embd", width=hp.width) * hp.width**0.5
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, qk_norm=qk_norm)
            x = x + (p.rms_norm(a, "post_attention_norm", eps=hp.eps) if p.has("post_attention_norm") else a)
            f = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i, act="gelu")
            x = x + (p.rms_norm(f, "post_ffw_norm", eps=hp.eps) if p.has("post_ffw_norm") else f)
    parts.read_out(p, x, hp)
