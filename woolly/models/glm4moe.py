"""GLM-4.5 to 4.7: rope on half of each head; dense layers before MoE layers, sigmoid routing with bias."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Text has the same M-RoPE position on all axes, so sections are not needed."""
    known = (*EXPERT_KEYS, "nextn_predict_layers", "rope.dimension_sections")
    hp = read_transformer(keys, "neox", knows=known)
    return replace(hp, experts=read_experts(keys, normalize=False, scoring="sigmoid"))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model. Smaller models have no QK norm."""
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = _layer(p, x, hp, i)
    parts.read_out(p, x, hp)


def build_draft(p: Tracer, hp: TransformerParams) -> None:
    """Build the MTP block: one more layer."""
    parts.next_token(p, hp, lambda x: _layer(p, x, hp, hp.n_layers - 1))


def _layer(p: Tracer, x: Handle, hp: TransformerParams, i: int) -> Handle:
    h = p.rms_norm(x, "attn_norm", eps=hp.eps)
    x = x + parts.self_attention(p, h, hp, i, qk_norm=p.has("attn_q_norm"))
    return x + parts.experts_or_feed_forward(p, p.rms_norm(x, "post_attention_norm", eps=hp.eps), hp, i)
