"""EAGLE-3: draft head that reads the inputs of three layers of the target model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


@dataclass(frozen=True)
class Eagle3Params:
    """Parameters of the single layer and of the head's inputs."""

    common: TransformerParams
    layers: tuple[int, ...]  # model layers whose inputs are read
    read_width: int  # width of one input
    is_residual_normed: bool
    is_read_normed: bool


def read(keys: Keys) -> Eagle3Params:
    """Read the parameters."""
    common, layers = read_transformer(keys, "adjacent"), keys.whole_numbers("target_layers")
    if common.n_layers != 1 or len(layers) != 3:
        raise ModelError(
            f"the draft head has {common.n_layers} layers and reads {len(layers)} model layers; expected 1 and 3"
        )
    flags = (keys.flag(f"norm_before_{what}", False) for what in ("residual", "fc"))
    return Eagle3Params(common, layers, keys.positive("target_hidden_size"), *flags)


def build_features(p: Tracer, hp: Eagle3Params) -> None:
    """Build the features: inputs of three model layers, concatenated and projected."""
    x = p.hidden(width=len(hp.layers) * hp.read_width)
    x = p.rms_norm(x, "enc.output_norm", eps=hp.common.eps) if hp.is_read_normed else x
    p.output(p.linear(x, "fc", width=hp.common.width))


def build_draft(p: Tracer, hp: Eagle3Params) -> None:
    """Build the layer, which also reads the next token's embedding and outputs the next row's feature."""
    p.skip("fc", "d2t", *("enc.output_norm",) * hp.is_read_normed)
    divisors = "rope_freqs" if p.has("rope_freqs") else None
    common = replace(hp.common, layers=(replace(hp.common.layers[0], divisors=divisors and "/head.rope_freqs"),))
    e = p.embed("token_embd" if p.has("token_embd") else "/token_embd", width=common.width)
    g = p.hidden(width=common.width)
    with p.scope("blk.0"):
        h = p.rms_norm(g, "attn_norm_2", eps=common.eps)
        pair = p.concat(p.rms_norm(e, "attn_norm", eps=common.eps), h)
        x = (h if hp.is_residual_normed else g) + parts.self_attention(p, pair, common, 0)
        x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, 0)
    y = p.rms_norm(p.output_rows(x), "output_norm", eps=common.eps)
    head = next(name for name in ("output", "/output", "/token_embd") if p.has(name))
    p.output(p.linear(y, head, width=p.rows(head)))
