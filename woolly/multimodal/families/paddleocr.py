"""PaddleOCR-VL: SigLIP with 2D rope and an interpolated position table; a norm and two matrices."""

from __future__ import annotations

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.families.qwen2vl import vision_rope
from woolly.plan import Tracer

PROJECTORS = ("paddleocr",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x, rope = p.embedding_bag(x, "v.position_embd", taps=4), vision_rope(hp)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu", rope=rope)
    x = p.layer_norm(p.layer_norm(x, "v.post_ln", eps=hp.eps), "mm.input_norm", eps=1e-5)
    p.output(mlp(p, p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.1", "mm.2"), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bilinear", 4)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    return PatchLayout(
        order, outputs, rope_positions=position_ids(grid, order), gather_rows=gather_rows, gather_weights=gather_weights
    )
