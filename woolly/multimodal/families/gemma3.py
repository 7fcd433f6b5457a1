"""Gemma 3: SigLIP, 4 x 4 average pooling, a norm and a matrix."""

from __future__ import annotations

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.vit import layer, square
from woolly.multimodal.encoder.vit import max_patches as max_patches
from woolly.plan import Tracer

PROJECTORS = ("gemma3",)
# Files store it as in transformers: one row per input column.
TRANSPOSED = ("mm.input_projection.weight",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.embedding_bag(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="mean")
    y = p.rms_norm(y, "mm.soft_emb_norm", eps=hp.eps)
    p.output(p.linear(y, "mm.input_projection", width=p.rows("mm.input_projection")), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in the order of pooling blocks."""
    return square(hp, grid)
