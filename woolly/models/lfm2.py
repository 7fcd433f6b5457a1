"""LFM 2: gated short convolutions, and attention with QK norm in some layers; optional MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, check_causal, read_experts, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("lfm2", "lfm2moe")


@dataclass(frozen=True)
class LfmParams:
    """Common parameters, and the kernel size of the convolution."""

    common: TransformerParams
    kernel: int


def read(keys: Keys) -> LfmParams:
    """Read the parameters."""
    check_causal(keys)
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, optional_heads=True)
    hp = replace(hp, experts=read_experts(keys, normalize=True, scoring="sigmoid"))
    return LfmParams(hp, keys.positive("shortconv.l_cache"))


def build(p: Tracer, hp: LfmParams) -> None:
    """Build the model. In files, the last norm is named `token_embd_norm`."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=common.eps)
            if common.recurrent[i]:
                x = x + parts.short_conv(p, h, kernel=hp.kernel)
            else:
                x = x + parts.self_attention(p, h, common, i, qk_norm=True)
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, i)
    h = p.rms_norm(p.output_rows(x), "token_embd_norm", eps=common.eps)
    p.output(parts.unembedded(p, h, common))
