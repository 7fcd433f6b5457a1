"""Gemma 3n: AltUp (four streams, one computed), per-layer embeddings, LAuReL, and shared K and V."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer

# Defaults for files without these keys: layers with separate K and V, and layers with sparse gates.
_OWN, _SPARSE, _DEVIATIONS = 20, 10, 1.6448536269514722
_KNOWN = ("attention.shared_kv_layers", "embedding_length_per_layer_input", "final_logit_softcapping")
_STREAMS, _MIN_SQUARE = 4, 1e-5


@dataclass(frozen=True)
class Gemma3nParams:
    """Common parameters, and the activation sparsity per layer, in standard deviations above the mean."""

    common: TransformerParams
    peaks: tuple[float, ...]  # minus infinity: no sparsity


def read(keys: Keys) -> Gemma3nParams:
    """Read the parameters. Attention scores are not scaled."""
    hp = read_transformer(keys, "neox", knows=_KNOWN, period=5, local_base=10000.0)
    if keys.integer("altup.num_inputs", _STREAMS) != _STREAMS or keys.integer("altup.active_idx", 0) != 0:
        raise UnsupportedError(f"gemma3n models must have {_STREAMS} streams, and the first must be active")
    n = hp.n_layers
    usual = [_DEVIATIONS if i < _SPARSE else -math.inf for i in range(n)]
    peaks = keys.numbers("activation_sparsity_scale", n) if keys.has("activation_sparsity_scale") else usual
    layers = tuple(replace(x, scale=1.0, divisors=None) for x in hp.layers)
    hp = replace(hp, layers=layers, logit_softcap=keys.number("final_logit_softcapping", 30.0))
    return Gemma3nParams(hp.sharing(keys.integer("attention.shared_kv_layers", max(0, n - _OWN))), tuple(peaks))


def build(p: Tracer, params: Gemma3nParams) -> None:
    """Build the model."""
    hp = params.common
    width, eps = hp.width, hp.eps
    x = p.embed("token_embd", width=width) * width**0.5
    inputs = parts.layer_inputs(p, x, hp, p.rows("per_layer_model_proj") // hp.n_layers)
    three = p.concat(p.concat(x, x), x)
    x = p.concat(x, p.match_rms(p.per_head_linear(three, "altup_proj", heads=3, width=width), x, least=_MIN_SQUARE))
    kept: dict[bool, Handle] = {}
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            coefs = p.linear(_modalities(p, _stream(p, x), eps), "altup_predict_coef", width=_STREAMS**2)
            x = x + p.mix_streams(x, coefs, streams=_STREAMS)
            active = _stream(p, x)
            h = p.rms_norm(active, "attn_norm", eps=eps)
            a = p.linear(parts.shared_attention(p, h, hp, i, kept), "attn_output", width=width)
            y = (p.rms_norm(a, "post_attention_norm", eps=eps) + active + _laurel(p, h, eps)) * 0.5**0.5
            f = _feed_forward(p, p.rms_norm(y, "ffn_norm", eps=eps), hp.layers[i].ffn, params.peaks[i])
            y = y + p.rms_norm(f, "post_ffw_norm", eps=eps)
            coefs = p.linear(_modalities(p, y, eps), "altup_correct_coef", width=_STREAMS)
            x = x + p.mix_streams(y + active * -1.0, coefs, streams=1, plus=1.0)
            first = parts.gated_input(p, p.mul_weight(_stream(p, x), "altup_correct_scale"), inputs, hp, i)
            rest = p.slice(x, first=width, width=3 * width) + p.concat(p.concat(first, first), first)
            x = p.concat(_stream(p, x), rest)
    rest = p.per_head_linear(p.slice(x, first=width, width=3 * width), "altup_unembd_proj", heads=3, width=width)
    rest = p.match_rms(rest, _stream(p, x), least=_MIN_SQUARE)
    last = _stream(p, x)
    for j in range(3):
        last = last + p.slice(rest, first=j * width, width=width)
    p.output(parts.logits(p, last * (1 / _STREAMS), hp))


def _stream(p: Tracer, x: Handle) -> Handle:
    """Return the active stream, the only one that a layer computes."""
    return p.slice(x, first=0, width=x.width // _STREAMS)


def _modalities(p: Tracer, x: Handle, eps: float) -> Handle:
    h = p.rms_norm(x, "altup_router_norm", eps=eps) * (1 / x.width)
    return p.unary(p.linear(h, "altup_router", width=_STREAMS), "tanh")


def _laurel(p: Tracer, h: Handle, eps: float) -> Handle:
    low = p.linear(h, "laurel_l", width=p.rows("laurel_l"))
    return h + p.rms_norm(p.linear(low, "laurel_r", width=h.width), "laurel_post_norm", eps=eps)


def _feed_forward(p: Tracer, h: Handle, ffn: int, deviations: float) -> Handle:
    gate, up = p.linear(h, "ffn_gate", width=ffn), p.linear(h, "ffn_up", width=ffn)
    gate = p.gaussian_topk(gate, deviations=deviations) if math.isfinite(deviations) else gate
    return p.linear(p.glu(gate, up, "gelu"), "ffn_down", width=h.width)
