"""Chameleon (text): Llama with layer norms of q and k heads; the logits of image tokens are suppressed."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer

_EPS = 1e-5  # of the norms of heads; not in files
_IMAGE_TOKENS = (4, 8196)  # first, and one after the last
_LEAST = -3.4e38


@dataclass(frozen=True)
class ChameleonParams:
    """Common parameters, and the place of the norms."""

    common: TransformerParams
    norms_after: bool  # norms after attention and MLP (34B), not before


def read(keys: Keys) -> ChameleonParams:
    """Read the parameters."""
    return ChameleonParams(read_transformer(keys, "adjacent"), keys.flag("swin_norm", False))


def build(p: Tracer, params: ChameleonParams) -> None:
    """Build the model."""
    hp, eps = params.common, params.common.eps
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            if params.norms_after:
                x = x + p.rms_norm(_attention(p, x, hp, i), "attn_norm", eps=eps)
                x = x + p.rms_norm(parts.feed_forward(p, x, hp, i), "ffn_norm", eps=eps)
            else:
                x = x + _attention(p, p.rms_norm(x, "attn_norm", eps=eps), hp, i)
                x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=eps), hp, i)
    p.output(_text_only(p, parts.logits(p, x, hp)))


def _attention(p: Tracer, h: Handle, hp: TransformerParams, i: int) -> Handle:
    this = hp.layers[i]
    q, k, v = parts.projections(p, h, this)
    q, k = p.layer_norm(q, "attn_q_norm", eps=_EPS), p.layer_norm(k, "attn_k_norm", eps=_EPS)
    q, k = (parts.apply_rope(p, x, this) for x in (q, k))
    return p.linear(parts.attend(p, q, k, v, hp, i), "attn_output", width=hp.width)


def _text_only(p: Tracer, logits: Handle) -> Handle:
    """Return logits in which no image token can be sampled."""
    first, last = _IMAGE_TOKENS
    if logits.width < last:  # a vocabulary without image tokens
        return logits
    images = p.clip(p.slice(logits, first=first, width=last - first), _LEAST, _LEAST * 0.999)
    out = p.concat(p.slice(logits, first=0, width=first), images)
    n_after = logits.width - last
    return p.concat(out, p.slice(logits, first=last, width=n_after)) if n_after else out
