"""MiniCPM 3: MiniCPM with MLA, and longrope."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams
from woolly.models.phi3 import divided, read_divided
from woolly.plan import Tracer

_EMBEDDING, _DEPTH, _BASE = 12.0, 1.4, 256  # scalars of the published model; not in files


@dataclass(frozen=True)
class MiniCPM3Params:
    """Common parameters and MLA widths."""

    common: TransformerParams
    latent: parts.Latent


def read(keys: Keys) -> MiniCPM3Params:
    """Read the parameters. By default, V heads have the model's width divided by the number of heads."""
    hp = read_divided(keys, ("attention.kv_lora_rank",))
    latent = parts.read_latent(keys, hp.layers[0])
    if not keys.has("attention.value_length"):
        latent = replace(latent, v_dim=hp.width // hp.layers[0].heads)
    ropes = (x.rope and replace(x.rope, head_dim=latent.n_rot) for x in hp.layers)
    layers = tuple(replace(x, rope=rope) for x, rope in zip(hp.layers, ropes, strict=True))
    return MiniCPM3Params(replace(hp, layers=layers), latent)


def build(p: Tracer, params: MiniCPM3Params) -> None:
    """Build the model."""
    hp = divided(p, params.common)
    residual = _DEPTH * hp.n_layers**-0.5
    x = p.embed("token_embd", width=hp.width) * _EMBEDDING
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            x = x + parts.latent_attention(p, h, hp, i, params.latent) * residual
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i) * residual
    p.output(parts.logits(p, x, hp) * (_BASE / hp.width))
