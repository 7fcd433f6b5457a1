"""MiniMax M3: block-sparse attention with an index per KV head, MoE with clamped gates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("minimax-m3",)


@dataclass(frozen=True)
class M3Params:
    """Common parameters and the index."""

    common: TransformerParams
    index: parts.Index | None


def read(keys: Keys) -> M3Params:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS)
    hp = replace(hp, experts=read_experts(keys, normalize=True, scoring="sigmoid", ffn=hp.ffn))
    rope = hp.layers[0].rope
    assert rope is not None
    return M3Params(hp, parts.read_index(keys, rope, "neox", hp.n_layers, has_blocks=True))


def build(p: Tracer, params: M3Params) -> None:
    """Build the model."""
    hp = params.common
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h, this = p.rms_norm(x, "attn_norm", eps=hp.eps), hp.layers[i]
            q, k, v = parts.projections(p, h, this)
            q, k = (
                parts.apply_rope(p, p.rms_norm(y, f"attn_{z}_norm", eps=hp.eps), this) for y, z in ((q, "q"), (k, "k"))
            )
            chosen = None
            if params.index is None:
                p.skip("indexer")
            elif p.has("indexer.k_proj"):
                chosen = parts.indexed_blocks(p, h, params.index, eps=hp.eps)
            a = p.attention(q, k, v, head_dim=this.head_dim, scale=this.scale, chosen=chosen)
            x = x + p.linear(a, "attn_output", width=hp.width)
            h = p.rms_norm(x, "ffn_norm", eps=hp.eps)
            x = x + parts.experts_or_feed_forward(p, h, hp, i, act="clamped")
    parts.read_out(p, x, hp)
