"""Hunyuan 4: hyper-connections, gated MLA with sparse attention by an index, MoE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer

_KNOWN = (*EXPERT_KEYS, "attention.kv_lora_rank", "swiglu_clamp_exp", "nextn_predict_layers")
_MAX_STREAMS = 16


@dataclass(frozen=True)
class HyV4Params:
    """Common parameters, MLA widths, the index, and hyper-connections."""

    common: TransformerParams
    latent: parts.Latent
    index: parts.Index | None  # None: dense attention
    streams: int
    magnitude: float  # scale of layer outputs added to streams
    eps: float  # added to all stream coefficients
    limits: tuple[float, ...]  # per layer: clamp limit of routed experts' gates; 0: no limit


def read(keys: Keys) -> HyV4Params:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=_KNOWN)
    latent, rope = parts.read_latent(keys, hp.layers[0]), hp.layers[0].rope
    assert rope is not None
    rope = replace(rope, head_dim=latent.n_rot)
    layers = tuple(replace(layer, rope=rope, scale=latent.k_dim**-0.5) for layer in hp.layers)
    hp = replace(hp, layers=layers, experts=read_experts(keys, normalize=True, scoring="sigmoid"))
    is_indexed = keys.is_set("attention.indexer.top_k")
    index = parts.read_index(keys, rope, "neox", hp.n_layers) if is_indexed else None
    streams, magnitude = keys.positive("hyper_connection.count"), keys.number("hyper_connection.magnitude")
    eps = keys.number("hyper_connection.epsilon")
    if not 1 < streams <= _MAX_STREAMS or not magnitude > 0 or not eps >= 0:
        raise UnsupportedError(
            f"{keys.architecture} models need 2 to {_MAX_STREAMS} streams, and a positive magnitude and epsilon; the"
            f" file has {streams}, {magnitude:g} and {eps:g}"
        )
    limits = keys.numbers("swiglu_clamp_exp", hp.n_layers) if keys.has("swiglu_clamp_exp") else (0.0,) * hp.n_layers
    limits = tuple(limit if limit > 1e-6 else 0.0 for limit in limits)
    return HyV4Params(hp, latent, index, streams, magnitude, eps, limits)


def build(p: Tracer, params: HyV4Params) -> None:
    """Build the model. Layers without an index reuse the selection of an earlier layer."""
    hp, n, index = params.common, params.streams, params.index
    p.skip(*hp.drafts)
    one = p.embed("token_embd", width=hp.width)
    x = one
    for _ in range(n - 1):
        x = p.concat(x, one)
    last: list[Handle] = []
    for i in range(hp.n_layers):

        def indexer(h: Handle, low: Handle, i: int = i) -> Handle | None:
            if index is None:
                p.skip("indexer")
                return None
            if index.is_own(p, i):
                last.append(parts.indexed(p, h, low, index, eps=hp.eps, is_last=True))
            return last[-1]

        def attend(h: Handle, i: int = i, indexer: Callable[[Handle, Handle], Handle | None] = indexer) -> Handle:
            return parts.latent_attention(p, h, hp, i, params.latent, indexer)

        def mix(h: Handle, i: int = i) -> Handle:
            limit = params.limits[i]
            if not limit:
                return parts.experts_or_feed_forward(p, h, hp, i)
            return parts.experts_or_feed_forward(p, h, hp, i, act="clipped", limit=limit, shared_act="silu")

        with p.scope(f"blk.{i}"):
            x = _connected(p, x, "attn", params, attend)
            x = _connected(p, x, "ffn", params, mix)
    share = _shares(p, x, "output_hc", params, n)
    parts.read_out(p, p.mix_streams(x, share, streams=n, plus=params.eps), hp)


def _shares(p: Tracer, x: Handle, name: str, params: HyV4Params, width: int) -> Handle:
    """Return the sigmoids of logits computed from all streams. Each group of logits has a separate scale."""
    n, logits = params.streams, p.linear(p.rms_norm(x, eps=params.common.eps), f"{name}_fn", width=width)
    scaled = p.mul_weight(logits, p.vector(f"{name}_scale").weight, run=n)
    return p.unary(scaled + p.vector(f"{name}_base"), "sigmoid")


def _connected(p: Tracer, x: Handle, name: str, params: HyV4Params, layer: Callable[[Handle], Handle]) -> Handle:
    """Return hyper-connection coefficients: stream to layer, and layer to stream."""
    n, eps = params.streams, params.eps
    into, out = p.split(_shares(p, x, f"hc_{name}", params, 2 * n), n, n)
    y = layer(p.rms_norm(p.mix_streams(x, into, streams=n, plus=eps), f"{name}_norm", eps=params.common.eps))
    return x + p.mix_streams(y, out * params.magnitude, streams=1, plus=eps)
