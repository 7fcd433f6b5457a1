"""Qwen 3 VL: Qwen 2 VL with an interpolated position table, and DeepStack features for decoder layers."""

from __future__ import annotations

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, bilinear_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.families.qwen2vl import both_frames, patches, vision_rope
from woolly.plan import Handle, Tracer

PROJECTORS = ("qwen3vl_merger",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. DeepStack features are concatenated to the rows of the last layer, in order."""
    x, rope = p.embedding_bag(patches(p, hp), "v.position_embd", taps=4), vision_rope(hp)
    deep: list[Handle] = []
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act=hp.act or "gelu", rope=rope)
        if p.has(f"v.deepstack.{i}.fc1"):
            with p.scope(f"v.deepstack.{i}"):
                y = p.layer_norm(p.merge_patches(x, rows=hp.merge**2, kind="concat"), "norm", eps=hp.eps)
                deep.append(mlp(p, y, "fc1", "fc2"))
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="concat")
    y = mlp(p, y, "mm.0", "mm.2")
    for one in deep:
        y = p.concat(y, one)
    p.output(y, "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, with both frames concatenated."""
    order = merge_order((1, *grid[1:]), hp.merge)
    gather_rows, gather_weights = bilinear_pos_embed(grid, order, hp.side)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    both = both_frames(hp, grid, order)
    return PatchLayout(
        both, outputs, rope_positions=position_ids(grid, order), gather_rows=gather_rows, gather_weights=gather_weights
    )
