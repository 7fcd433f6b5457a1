"""LFM2-VL: SigLIP 2 with an interpolated position table, 2 x 2 pixel shuffle, two matrices."""

from __future__ import annotations

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.plan import Tracer

PROJECTORS = ("lfm2",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd", taps=_taps(hp))
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    x = p.layer_norm(x, "v.post_ln", eps=hp.eps) if p.has("v.post_ln") else x
    y = p.merge_patches(x, rows=hp.merge**2, kind="concat")
    if p.has("mm.input_norm"):
        y = p.layer_norm(y, "mm.input_norm", eps=1e-5)
    p.output(mlp(p, y, "mm.1", "mm.2"), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "antialiased", _taps(hp))
    return PatchLayout(
        order,
        np.arange(0, len(order), hp.merge**2, dtype=np.int32),
        gather_rows=gather_rows,
        gather_weights=gather_weights,
    )


def _taps(hp: TowerParams) -> int:
    """Return the number of interpolation taps for the most elongated image: a complete table axis, two taps wide."""
    return 2 * hp.table_side + 2


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of a 512-pixel tile, or for the maximum number of rows."""
    return max(hp.table_side**2, 1024)
