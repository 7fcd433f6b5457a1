"""CogVLM: Llama with separate weights for image rows (visual expert) in every layer."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. All patches of an image have the same position, which rotates all pairs (one section)."""
    hp = read_transformer(keys, "neox")
    ropes = [layer.rope and replace(layer.rope, sections=(layer.rope.n_rot // 2,)) for layer in hp.layers]
    return replace(hp, layers=tuple(replace(x, rope=rope) for x, rope in zip(hp.layers, ropes, strict=True)))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i, layer in enumerate(hp.layers):
        with p.scope(f"blk.{i}"):
            widths = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.kv_heads * layer.v_dim
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            q, k, v = p.split(p.linear_id(h, "attn_qkv", "vis_attn_qkv", width=sum(widths)), *widths)
            a = parts.attend(p, parts.apply_rope(p, q, layer), parts.apply_rope(p, k, layer), v, hp, i)
            x = x + p.linear_id(a, "attn_output", "vis_attn_output", width=hp.width)
            h = p.rms_norm(x, "ffn_norm", eps=hp.eps)
            gate, up = (p.linear_id(h, f"ffn_{one}", f"vis_{one}", width=layer.ffn) for one in ("gate", "up"))
            x = x + p.linear_id(p.glu(gate, up), "ffn_down", "vis_down", width=hp.width)
    parts.read_out(p, x, hp)
