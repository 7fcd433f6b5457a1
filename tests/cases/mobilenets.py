"""A tiny MobileNet-V5: blocks as timm writes them, and the shapes of their tensors."""

from __future__ import annotations

STEM = 8
# By resolution: filters that mix channels; filters of 3 x 3 and 5 x 5; keys and values of each second place; of each.
BLOCKS = (
    ("er_r1_k3_s2_e4_c8", "er_r1_k3_s1_e4_c8"),
    ("uir_r1_a3_k5_s2_e2_c16", "uir_r1_a5_k0_s1_e2_c16", "uir_r1_a3_k0_s1_e2_c16"),
    ("uir_r1_a5_k5_s2_e2_c24", "uir_r1_a5_k0_s1_e2_c24", "mqa_r1_k3_h3_v2_s1_d16_c24", "uir_r1_a0_k0_s1_e2_c24"),
    ("uir_r1_a5_k5_s2_e2_c32", "mqa_r1_k3_h2_s1_d16_c32", "uir_r1_a0_k0_s1_e2_c32"),
)

Shapes = dict[str, tuple[int, ...]]


def mobilenet(width: int, text: int) -> Shapes:
    """Shapes of all tensors of the tower, whose last rows have `width` channels."""
    out: Shapes = {
        "v.conv_stem.conv.weight": (STEM, 3, 3, 3),
        "v.conv_stem.conv.bias": (1, STEM, 1, 1),
        "v.conv_stem.bn.weight": (STEM,),
    }
    n = STEM
    for group, blocks in enumerate(BLOCKS):
        for i, block in enumerate(blocks):
            kind, *parts = block.split("_")
            says = {part[0]: int(part[1:]) for part in parts}
            own, n = _block(kind, says, n), says["c"]
            out |= {f"v.blk.{group}.{i}.{name}": shape for name, shape in own.items()}
    both = 24 + 32
    fused = {"ffn.pw_exp": (2 * both, both), "ffn.pw_proj": (width, 2 * both)}
    for name, (rows, columns) in fused.items():
        out |= {f"v.msfa.{name}.conv.weight": (rows, columns, 1, 1), f"v.msfa.{name}.bn.weight": (rows,)}
    return out | {
        "v.msfa.norm.weight": (width,),
        "mm.embedding.weight": (128, width),
        "mm.hard_emb_norm.weight": (width,),
        "mm.soft_emb_norm.weight": (width,),
        "mm.input_projection.weight": (text, width),
    }


def _block(kind: str, says: dict[str, int], n: int) -> Shapes:
    to = says["c"]
    if kind == "er":
        mid = n * says["e"]
        return {"conv_exp.weight": (mid, n, 3, 3), "bn1.weight": (mid,), "conv_pwl.weight": (to, mid, 1, 1),
                "bn2.weight": (to,)}  # fmt: skip
    if kind == "mqa":
        d, heads = says["d"], says["h"]
        out: Shapes = {"norm.weight": (n,), "layer_scale.gamma": (to,), "attn.query.proj.weight": (heads * d, n, 1, 1),
                       "attn.output.proj.weight": (to, heads * d, 1, 1)}  # fmt: skip
        for one in ("key", "value"):
            out[f"attn.{one}.proj.weight"] = (d, n, 1, 1)
            if "v" in says:
                out |= {f"attn.{one}.down_conv.weight": (n, 1, 3, 3), f"attn.{one}.norm.weight": (n,)}
        return out
    mid = n * says["e"]
    out = {"pw_exp.conv.weight": (mid, n, 1, 1), "pw_exp.bn.weight": (mid,), "pw_proj.conv.weight": (to, mid, 1, 1),
           "pw_proj.bn.weight": (to,), "layer_scale.gamma": (to,)}  # fmt: skip
    for name, side, channels in (("dw_start", says["a"], n), ("dw_mid", says["k"], mid)):
        if side:
            out |= {f"{name}.conv.weight": (channels, 1, side, side), f"{name}.bn.weight": (channels,)}
    return out
