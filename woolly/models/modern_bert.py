"""ModernBERT: pre-norm, no biases, GeGLU; global attention in every third layer, sliding windows in the others."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer
from woolly.plan.ops.basic import Gate

ARCHITECTURES = ("modern-bert",)
_ACTS: dict[str, Gate] = {"gelu": "gelu_erf", "silu": "silu"}


@dataclass(frozen=True)
class ModernBertParams:
    """Common parameters and activation of the gate."""

    common: TransformerParams
    act: Gate


def read(keys: Keys) -> ModernBertParams:
    """Read the parameters."""
    act = keys.string("hidden_activation", "gelu")
    if act not in _ACTS:
        raise UnsupportedError(f"activation {act!r} is not supported yet for {keys.architecture} models")
    common = read_transformer(keys, "neox", norm="layer", causal=False, period=3, dense_first=True, local_base=10000.0)
    return ModernBertParams(common, _ACTS[act])


def build(p: Tracer, hp: ModernBertParams) -> None:
    """Build the model. The first layer has no norm because the embedding is normed."""
    common = hp.common
    x = p.layer_norm(p.embed("token_embd", width=common.width), "token_embd_norm", eps=common.eps)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.layer_norm(x, "attn_norm", eps=common.eps) if p.has("attn_norm") else x
            x = x + parts.self_attention(p, h, common, i)
            h = p.layer_norm(x, "ffn_norm", eps=common.eps)
            x = x + parts.feed_forward(p, h, common, i, act=hp.act)
    x = p.layer_norm(x, "output_norm", eps=common.eps)
    parts.embeddings(p, x, rank="mean", act="gelu_erf", eps=common.eps)
