"""Pixtral, Mistral Small 3.1, LightOnOCR: any image size, 2D rope, a norm before all layers."""

from __future__ import annotations

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.plan import Rope, Tracer

PROJECTORS = ("pixtral", "lightonocr")


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
