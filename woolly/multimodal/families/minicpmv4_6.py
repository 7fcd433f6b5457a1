"""MiniCPM-V 4.6: SigLIP with a 2 x 2 merger between two layers and another 2 x 2 merger at the end.

Files that keep one row per 2 x 2 patches have no merger between layers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from woolly.errors import ModelError
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, merge_order, position_ids
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.slices import process_slices, slice_parts, slice_tiling
from woolly.plan import Handle, Tracer

_BLOCK = 4  # patches per merged row, at each merger


def stages(hp: TowerParams) -> tuple[StageBuilder, ...]:
    """Build the stages before and after the inner merger, or one stage without it."""
    if hp.merge not in (2, 4):
        raise ModelError(f"metadata key clip.vision.projector.scale_factor is {hp.merge}; expected 2 or 4")
    if hp.merge == 2:
        return (StageBuilder(partial(_last, first=0), ("",)),)
    after = _inserted(hp) + 1
    names = ("v.patch_embd.", "v.position_embd.", "v.vit_merger.", *(f"v.blk.{i}." for i in range(after)))
    return StageBuilder(_first, names), StageBuilder(partial(_last, first=after), ("",), patches=_BLOCK)


def _first(p: Tracer, hp: TowerParams) -> None:
    """Build the layers over patches, then attention within each block and the inner merger."""
    x = _patches(p, hp)
    for i in range(_inserted(hp) + 1):
        x = layer(p, x, hp, i, act="gelu")
    with p.scope("v.vit_merger"):
        h = p.layer_norm(x, "ln1", eps=hp.eps)
        q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
        a = p.attention(q, k, v, head_dim=hp.head_dim, scale=hp.head_dim**-0.5, mask="block")
        x = x + p.linear(a, "attn_out", width=hp.width)
        joined = p.layer_norm(p.merge_patches(x, rows=_BLOCK, kind="concat"), "ds_ln", eps=hp.eps)
        y = mlp(p, joined, "ds_ffn_up", "ds_ffn_down", act="gelu")
        p.output(y + p.merge_patches(x, rows=_BLOCK, kind="mean"), "embeddings", "none")


def _last(p: Tracer, hp: TowerParams, first: int) -> None:
    """Build the layers over merged rows (or patches without the inner merger) and the projector."""
    x = p.input(width=hp.width) if first else _patches(p, hp)
    for i in range(first, hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=_BLOCK, kind="concat")
    p.output(mlp(p, p.layer_norm(y, "mm.input_norm", eps=1e-6), "mm.up", "mm.down"), "embeddings", "none")


def _patches(p: Tracer, hp: TowerParams) -> Handle:
    return p.embedding_bag(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd")


def _inserted(hp: TowerParams) -> int:
    """Return the index of the layer before the inner merger."""
    found = hp.keys.whole_numbers("vision.wa_layer_indexes")
    if len(found) != 1 or not 0 <= found[0] < hp.n_layers - 1:
        raise ModelError(
            f"metadata key clip.vision.wa_layer_indexes is {list(found)!r:.60}; expected one layer from 0 to"
            f" {hp.n_layers - 2}"
        )
    return found[0]


def patch_layout(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the patches by 2 x 2 blocks, and the merged rows by 2 x 2 blocks."""
    order, side = merge_order(grid, 2), hp.table_side
    lines, columns = position_ids(grid, order)
    gather_rows = lines * side // grid[1] * side + columns * side // grid[2]
    first = np.arange(0, len(order), _BLOCK, dtype=np.int32)
    begin = np.repeat(first, _BLOCK)
    patches = PatchLayout(
        order,
        first,
        attn_ranges=np.stack([begin, begin + _BLOCK], axis=1),
        gather_rows=gather_rows[:, None],
        gather_weights=np.ones((len(order), 1), np.float32),
    )
    if hp.merge == 2:
        return (patches,)
    merged = merge_order((grid[0], grid[1] // 2, grid[2] // 2), 2)
    return patches, PatchLayout(merged, np.arange(0, len(merged), _BLOCK, dtype=np.int32))


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of a slice, whose sides are rounded to multiples of a row."""
    return 2 * hp.side**2


FAMILIES = (
    VisionFamily(
        name="minicpmv4_6",
        placeholder_texts=("(<image>./</image>)", "<|image_pad|>"),
        parts=slice_parts,
        merge_size=4,
        choose_tiling=slice_tiling,
        process=process_slices,
        stages=stages,
        patch_layout=patch_layout,
        max_patches=max_patches,
    ),
)
