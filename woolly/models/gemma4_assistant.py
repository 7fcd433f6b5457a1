"""Gemma 4 assistants: draft heads without K and V, which attend to K and V of the target model.

Files of the smaller models also have token clusters (`masked_embd_centroids`, `masked_embd_ordering`) to compute only
the logits of some clusters. Woolly ignores the clusters and computes all logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("gemma4-assistant",)
_KNOWN = ("final_logit_softcapping", "attention.shared_kv_layers", "embedding_length_per_layer_input")


@dataclass(frozen=True)
class AssistantParams:
    """Common parameters and width of the target model's rows."""

    common: TransformerParams
    read_width: int


def read(keys: Keys) -> AssistantParams:
    """Read the parameters. A row is stored at the position of the next token, so rope of q subtracts one."""
    # All blocks are draft blocks.
    hp = read_transformer(keys.without("nextn_predict_layers"), "neox", knows=_KNOWN, period=6, local_base=10000.0)
    layers = tuple(
        replace(
            x, scale=1.0, divisors=None if x.window else "/head.rope_freqs", rope=x.rope and replace(x.rope, back=-1)
        )
        for x in hp.layers
    )
    return AssistantParams(replace(hp, layers=layers), keys.positive("embedding_length_out"))


def build_draft(p: Tracer, hp: AssistantParams, entries: Mapping[bool, int]) -> Handle:
    """Build the draft and return the features for the next draft token.

    `entries` maps windowed (True) and global (False) attention to the K and V of a model layer.
    """
    common, eps = hp.common, hp.common.eps
    e = p.embed("/token_embd", width=hp.read_width) * hp.read_width**0.5
    x = p.linear(p.concat(e, p.hidden("/output_norm", eps=eps)), "nextn.pre_projection", width=common.width)
    for i, this in enumerate(common.layers):
        with p.scope(f"blk.{i}"):
            q = p.linear(p.rms_norm(x, "attn_norm", eps=eps), "attn_q", width=this.heads * this.head_dim)
            q = parts.apply_rope(p, p.rms_norm(q, "attn_q_norm", eps=eps), this)
            # The row has no K and V, but counts as one position of the window.
            window, like = max(0, this.window - 1), entries[this.window > 0]
            a = p.attention(q, like=like, head_dim=this.head_dim, scale=this.scale, window=window)
            x = x + p.rms_norm(p.linear(a, "attn_output", width=common.width), "post_attention_norm", eps=eps)
            f = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=eps), common, i, act="gelu")
            x = p.mul_weight(x + p.rms_norm(f, "post_ffw_norm", eps=eps), "layer_output_scale")
    following = p.linear(p.rms_norm(x, "output_norm", eps=eps), "nextn.post_projection", width=hp.read_width)
    y = p.rms_norm(p.output_rows(x), "output_norm", eps=eps)
    p.output(p.linear(y, "token_embd", width=p.rows("token_embd")))
    return following
