"""Kimi-VL (MoonViT): an interpolated position table, and 2D rope with columns and lines interleaved."""

from __future__ import annotations

import numpy as np

from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import select_rows
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.families.qwen2vl import vision_rope
from woolly.multimodal.processing.kimi import MAX_PATCHES, MAX_SIDE_PATCHES
from woolly.plan import Tracer

PROJECTORS = ("kimivl",)

_TAPS = 16
_NORM = 1e-5  # epsilon of the projector's norm


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. The projector norms each patch."""
    x = p.embedding_bag(
        p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd", taps=_TAPS
    )
    rope = vision_rope(hp)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu", rope=rope)
    x = p.layer_norm(p.layer_norm(x, "v.post_ln", eps=hp.eps), "mm.input_norm", eps=_NORM)
    p.output(mlp(p, p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.1", "mm.2"), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reorder head columns from interleaved pairs (columns and lines alternating) to split halves."""
    fours = np.arange(hp.head_dim).reshape(-1, 4)  # one pair for the column, then one for the line
    head = fours[:, [2, 0, 3, 1]].T.reshape(-1)
    rows = (np.arange(hp.heads)[:, None] * hp.head_dim + head).reshape(-1)
    names = (f"v.blk.{i}.attn_{one}.{part}" for i in range(hp.n_layers) for one in "qk" for part in ("weight", "bias"))
    return {name: select_rows(hp.tensors[name], rows) for name in names if name in hp.tensors}


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bicubic", _TAPS)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    return PatchLayout(
        order, outputs, rope_positions=position_ids(grid, order), gather_rows=gather_rows, gather_weights=gather_weights
    )


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of the largest image, including a row and a column of padding."""
    pixels = hp.settings.max_pixels
    n = pixels // hp.settings.patch_size**2 if pixels else MAX_PATCHES
    return n + 2 * hp.merge * (MAX_SIDE_PATCHES + 1) + 4
