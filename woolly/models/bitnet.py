"""BitNet b1.58: ternary matrices, each with a scale; an additional norm before each output matrix."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            layer = hp.layers[i]
            q, k, v = parts.projections(p, p.rms_norm(x, "attn_norm", eps=hp.eps), layer)
            a = parts.attend(p, parts.apply_rope(p, q, layer), parts.apply_rope(p, k, layer), v, hp, i)
            x = x + p.linear(p.rms_norm(a, "attn_sub_norm", eps=hp.eps), "attn_output", width=hp.width)
            h = p.rms_norm(x, "ffn_norm", eps=hp.eps)
            f = p.glu(p.linear(h, "ffn_gate", width=layer.ffn), p.linear(h, "ffn_up", width=layer.ffn))
            x = x + p.linear(p.rms_norm(f, "ffn_sub_norm", eps=hp.eps), "ffn_down", width=hp.width)
    parts.read_out(p, x, hp)
