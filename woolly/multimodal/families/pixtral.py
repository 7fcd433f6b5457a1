"""Pixtral, Mistral Small 3.1, LightOnOCR: any image size, 2D rope, a norm before all layers.

An image keeps its aspect ratio within a longest side, rounded up to full rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.prompt_replacement import Placeholder, all_inputs
from woolly.plan import Rope, Tracer

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. Converters interleave the rope pairs of a head."""
    x = p.rms_norm(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.pre_ln", eps=hp.eps)
    quarter = hp.head_dim // 4
    rope = Rope(hp.head_dim, hp.head_dim, 10000.0, "adjacent", sections=(quarter, quarter), spectrum="every")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf" if hp.act == "gelu" else "silu", norm="rms", rope=rope)
    if p.has("mm.patch_merger"):
        y = p.merge_patches(p.rms_norm(x, "mm.input_norm", eps=hp.eps), rows=hp.merge**2, kind="interleave")
        y = p.linear(y, "mm.patch_merger", width=hp.width)
    else:
        y = p.output_rows(x)
    p.skip("v.token_embd.img_break")  # also in the text model
    p.output(mlp(p, y, "mm.1", "mm.2"), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order. A block is a single patch unless the file merges patches."""
    order = merge_order(grid, hp.merge)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    return PatchLayout(order, outputs, rope_positions=position_ids(grid, order))


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of the largest image, with sides rounded up to multiples of a row."""
    longest = hp.settings.preproc_image_size or hp.settings.image_size
    return (longest // hp.settings.patch_size + hp.merge) ** 2


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input within the longest side."""
    side = settings.patch_size * settings.merge_size
    shrink = max(height, width) / (settings.preproc_image_size or settings.image_size)
    if shrink > 1:
        height, width = math.floor(height / shrink), math.floor(width / shrink)
    return Tiling(((max(1, math.ceil(height / side)) * side, max(1, math.ceil(width / side)) * side),))


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return lines of rows, with a text between lines."""
    _, height, width = settings.merged_grid(prepared.inputs[0].grid_thw)
    lines = [Placeholder(prepared, 0, y * width, width) for y in range(height)]
    return [part for line in lines for part in (line, "[IMG_BREAK]")][:-1]


_PIXTRAL = VisionFamily(
    name="pixtral",
    end="[IMG_END]",
    placeholder_texts=("[IMG]",),
    parts=parts,
    merge_key="spatial_merge_size",
    choose_tiling=choose_tiling,
    build=build,
    patch_layout=patch_layout,
    max_patches=max_patches,
)

FAMILIES = (
    _PIXTRAL,
    replace(_PIXTRAL, name="lightonocr", end="", placeholder_texts=("<|image_pad|>",), parts=all_inputs),
)
