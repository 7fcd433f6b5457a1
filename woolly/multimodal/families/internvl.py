"""InternVL: InternViT with layer scale, pixel shuffle, a norm and an MLP of two matrices."""

from __future__ import annotations

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.vit import layer, mlp, square, with_class
from woolly.multimodal.encoder.vit import max_patches as max_patches
from woolly.plan import Tracer

PROJECTORS = ("internvl",)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. GELU is the exact form."""
    x = with_class(p, p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width))
    x = p.embedding_bag(x, "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="silu" if hp.act == "silu" else "gelu_erf", norm="rms" if _is_rms(p) else "layer")
    y = p.layer_norm(p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.model.mlp.0", eps=1e-5)
    p.output(mlp(p, y, "mm.model.mlp.1", "mm.model.mlp.3"), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the class row, then the patches of a tile in merge order."""
    return square(hp, grid, has_class=True)


def _is_rms(p: Tracer) -> bool:
    """True if norms are RMS norms (weights without bias), as in the largest encoder."""
    return not p.has("v.blk.0.ln1.bias")
