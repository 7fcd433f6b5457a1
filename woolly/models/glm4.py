"""GLM-4: Llama with norms before and after each block, rope on half of each head, and fused gate and up."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer
from woolly.plan.rope_scaling import RopeStyle


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Text models of VL models, recognized by M-RoPE sections, use NeoX pairs."""
    style: RopeStyle = "neox" if keys.is_set("rope.dimension_sections") else "adjacent"
    return read_transformer(keys, style, knows=("rope.dimension_sections",))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + p.rms_norm(a, "post_attention_norm", eps=hp.eps)
            f = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
            x = x + p.rms_norm(f, "post_ffw_norm", eps=hp.eps)
    parts.read_out(p, x, hp)
