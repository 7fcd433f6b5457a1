"""Dream and RND1: Qwen 2 and Qwen 3 MoE with bidirectional attention, which predict masked tokens (diffusion)."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import MaskedDiffusion, Tracer

ARCHITECTURES = ("dream", "rnd1")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, causal=False)
    return replace(hp, experts=read_experts(keys, normalize=True))


def diffusion(keys: Keys) -> MaskedDiffusion:
    """Return the mask token. Row i of the logits predicts position i + 1 unless the file says otherwise."""
    return parts.read_diffusion(keys, is_shifted=True)


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            x = x + parts.self_attention(p, h, hp, i, qk_norm=p.has("attn_q_norm"))
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    parts.read_out_masked(p, x, hp)
