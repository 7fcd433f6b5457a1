"""LLaVA and Granite Vision: features of CLIP or SigLIP layers without the class row, and two matrices."""

from __future__ import annotations

from woolly.errors import ModelError, UnsupportedError
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.vit import layer, mlp, square, with_class
from woolly.multimodal.encoder.vit import max_patches as max_patches
from woolly.plan import Tracer

PROJECTORS = ("mlp",)
CONSTANTS = ("v.image_newline",)  # end of each line in LLaVA 1.6

# Layer counts of complete CLIP encoders. Files without `feature_layer` contain either all layers, of which the last is
# unused, or one layer less.
_WHOLE = (12, 24, 32)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. For several feature layers (Granite Vision), features are concatenated."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(with_class(p, x) if _has_class(hp) else x, "v.position_embd")
    if p.has("v.pre_ln"):
        x = p.layer_norm(x, "v.pre_ln", eps=hp.eps)
    chosen = _chosen(hp)
    p.skip("v.post_ln", *(f"v.blk.{i}" for i in range(max(chosen), hp.n_layers)))
    seen = {0: x}
    for i in range(max(chosen)):
        seen[i + 1] = layer(p, seen[i], hp, i, act=hp.act or "gelu_quick")
    if p.has("mm.3"):
        raise UnsupportedError("LLaVA projectors with norms (Yi-VL) are not supported yet")
    p.skip("v.image_newline")
    y, *others = (p.output_rows(seen[i]) for i in chosen)
    for one in others:
        y = p.concat(y, one)
    p.output(
        mlp(p, y, "mm.0", "mm.2") if p.has("mm.2") else p.linear(y, "mm.0", width=p.rows("mm.0")), "embeddings", "none"
    )


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches, after the class row for CLIP."""
    return square(hp, grid, has_class=_has_class(hp))


def _has_class(hp: TowerParams) -> bool:
    """True if the encoder is CLIP; SigLIP has no class row."""
    return "v.class_embd" in hp.tensors


def _chosen(hp: TowerParams) -> tuple[int, ...]:
    """Return the layers whose outputs are features; 0 is the input of the first layer."""
    if not hp.keys.has("vision.feature_layer"):
        return (hp.n_layers - (hp.n_layers in _WHOLE),)
    chosen = hp.keys.whole_numbers("vision.feature_layer")
    is_known = all(0 <= one <= hp.n_layers for one in chosen) and max(chosen) > 0
    if not is_known or len(set(chosen)) < len(chosen):
        raise ModelError(
            f"metadata key clip.vision.feature_layer is {list(chosen)!r:.60}; expected different numbers from 1 to"
            f" {hp.n_layers}"
        )
    return chosen
