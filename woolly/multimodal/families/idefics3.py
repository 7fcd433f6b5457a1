"""Idefics 3 and SmolVLM: SigLIP, pixel shuffle and a matrix."""

from __future__ import annotations

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.vit import layer, square
from woolly.multimodal.encoder.vit import max_patches as max_patches
from woolly.plan import Tracer

PROJECTORS = ("idefics3",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.embedding_bag(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="concat")
    p.output(p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc")), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches of a tile in merge order."""
    return square(hp, grid)
