"""PaddleOCR-VL: SigLIP with 2D rope and an interpolated position table; a norm and two matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp, vision_rope
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.smart_resize import smart_tiling
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.processing.tiling import Tiling
    from woolly.multimodal.vision_settings import VisionSettings


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


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input, after enlarging an image with a side shorter than a row."""
    side = settings.patch_size * settings.merge_size
    if min(height, width) < side:
        height, width = max(height, side), max(width, round(width * side / height) if height < side else width)
        height, width = (round(height * side / width), side) if width < side else (height, width)
    return smart_tiling(height, width, settings)


FAMILIES = (
    VisionFamily(
        name="paddleocr",
        begin="<|IMAGE_START|>",
        end="<|IMAGE_END|>",
        placeholder_texts=("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>"),
        has_mrope=True,
        merge_size=2,
        merge_key="spatial_merge_size",
        choose_tiling=choose_tiling,
        build=build,
        patch_layout=patch_layout,
    ),
)
