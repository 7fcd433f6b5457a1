"""dots3-note: MLA with gated heads, over a sliding window or over positions selected by an index."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, Layer, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer

_KNOWN = (*EXPERT_KEYS, "attention.kv_lora_rank", "nextn_predict_layers")


@dataclass(frozen=True)
class Dots3Params:
    """Common parameters, MLA widths per layer, and the index of global layers."""

    common: TransformerParams
    latents: tuple[parts.Latent, ...]
    index: parts.Index | None


def read(keys: Keys) -> Dots3Params:
    """Read the parameters. Sliding-window layers have separate MLA widths and rope."""
    hp = read_transformer(keys, "adjacent", knows=_KNOWN, period=1, local_base=10000.0)
    whole = parts.read_latent(keys, hp.layers[0])
    rank, k_dim, v_dim = (
        keys.positive(f"attention.{name}_swa", default)
        for name, default in (
            ("kv_lora_rank", whole.rank),
            ("key_length_mla", whole.k_dim),
            ("value_length_mla", whole.v_dim),
        )
    )
    latents = tuple(parts.Latent(rank, k_dim, v_dim, whole.n_rot) if x.window else whole for x in hp.layers)
    layers = tuple(_with_rope(layer, latent) for layer, latent in zip(hp.layers, latents, strict=True))
    hp = replace(hp, layers=layers, experts=read_experts(keys, normalize=True, scoring="sigmoid"))
    rope = next((layer.rope for layer in layers if not layer.window), None)
    index = parts.read_index(keys, rope, "adjacent", hp.n_layers) if rope is not None else None
    return Dots3Params(hp, latents, index)


def _with_rope(layer: Layer, latent: parts.Latent) -> Layer:
    assert layer.rope is not None
    rope = replace(layer.rope, head_dim=latent.n_rot, n_rot=latent.n_rot)
    return replace(layer, rope=rope, scale=latent.k_dim**-0.5)


def build(p: Tracer, params: Dots3Params) -> None:
    """Build the model."""
    hp, index = params.common, params.index
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):

        def indexer(h: Handle, low: Handle, has_window: bool = hp.layers[i].window > 0) -> Handle | None:
            if has_window or index is None:
                p.skip("indexer")
                return None
            return parts.indexed(p, h, low, index)

        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            x = x + parts.latent_attention(p, h, hp, i, params.latents[i], indexer)
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.logits(p, x, hp))
