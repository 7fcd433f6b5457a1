"""Llama 4: tiles with 2D rope, a class row at the end, 2 x 2 pixel shuffle, three matrices."""

from __future__ import annotations

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, position_ids
from woolly.multimodal.encoder.vit import layer, mlp, square, with_class
from woolly.multimodal.encoder.vit import max_patches as max_patches
from woolly.plan import Rope, Tracer

PROJECTORS = ("llama4",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. GELU is the exact form."""
    quarter = hp.head_dim // 4
    rope = Rope(hp.head_dim, hp.head_dim, 10000.0, "adjacent", sections=(quarter, quarter), spectrum="each")
    x = with_class(p, p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width))
    x = p.layer_norm(p.embedding_bag(x, "v.position_embd"), "v.pre_ln", eps=hp.eps)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf", rope=rope)
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="concat")
    y = p.unary(mlp(p, y, "mm.model.mlp.1", "mm.model.mlp.2"), "gelu_erf")
    p.output(p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc")), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, with rope positions from 1, then the class row, which is not rotated."""
    patches = square(hp, grid)
    n = len(patches.order)
    order = np.append(patches.order, np.int32(-1))
    lines, columns = np.where(order >= 0, position_ids(grid, order) + 1, 0)
    is_class = np.where(order >= 0, -1, 0)
    gather_rows = np.stack([np.where(order >= 0, order, n), is_class, is_class], axis=1).astype(np.int32)
    gather_weights = np.tile(np.array([1, 1, -1], np.float32), (n + 1, 1))
    rope_positions = np.stack([columns, lines]).astype(np.int32)
    return PatchLayout(
        order, patches.outputs, rope_positions=rope_positions, gather_rows=gather_rows, gather_weights=gather_weights
    )
