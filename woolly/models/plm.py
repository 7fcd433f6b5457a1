"""PLM: MLA, an MLP with squared ReLU and no gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


@dataclass(frozen=True)
class PlmParams:
    """Common parameters and MLA widths."""

    common: TransformerParams
    latent: parts.Latent


def read(keys: Keys) -> PlmParams:
    """Read the parameters."""
    hp = read_transformer(keys, "adjacent", knows=("attention.kv_lora_rank",))
    latent = parts.read_latent(keys, hp.layers[0])
    ropes = (x.rope and replace(x.rope, head_dim=latent.n_rot) for x in hp.layers)
    layers = tuple(replace(x, rope=rope) for x, rope in zip(hp.layers, ropes, strict=True))
    return PlmParams(replace(hp, layers=layers), latent)


def build(p: Tracer, params: PlmParams) -> None:
    """Build the model."""
    hp = params.common
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.latent_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, params.latent)
            x = x + parts.plain_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i, act="relu2")
    p.output(parts.logits(p, x, hp))
