"""Command R and Cohere 2: one layer norm, then attention and MLP in parallel; scaled logits."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("command-r", "cohere2")


@dataclass(frozen=True)
class CohereParams:
    """Common parameters and the logit scale."""

    common: TransformerParams
    logit_scale: float


def read(keys: Keys) -> CohereParams:
    """Read the parameters. In Cohere 2, three of four layers have sliding windows, and only these have rope."""
    if keys.architecture == "command-r":
        hp = read_transformer(keys, "adjacent", knows=("logit_scale",), norm="layer")
    else:
        keys.positive("attention.sliding_window")  # without this key no layer would have rope
        hp = read_transformer(keys, "adjacent", knows=("logit_scale",), norm="layer", period=4)
        hp = hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
    return CohereParams(hp, keys.number("logit_scale", 1.0))


def build(p: Tracer, hp: CohereParams) -> None:
    """Build the model. The largest model has QK norms with weights per head."""
    common, eps = hp.common, hp.common.eps
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.layer_norm(x, "attn_norm", eps=eps)
            q, k, v = parts.projections(p, h, common.layers[i])
            if p.has("attn_q_norm"):
                q, k = p.layer_norm(q, "attn_q_norm", eps=eps), p.layer_norm(k, "attn_k_norm", eps=eps)
            q, k = (parts.apply_rope(p, y, common.layers[i]) for y in (q, k))
            a = p.linear(parts.attend(p, q, k, v, common, i), "attn_output", width=common.width)
            x = x + a + parts.feed_forward(p, h, common, i)
    h = p.layer_norm(p.output_rows(x), "output_norm", eps=eps)
    p.output(parts.unembedded(p, h, common) * hp.logit_scale)
