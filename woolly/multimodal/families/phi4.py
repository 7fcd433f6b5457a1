"""Phi-4 Reasoning Vision: SigLIP 2 with a resized position table, and one row per patch.

Files have one layer less than SigLIP 2, because the features are those before the last layer.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.single_image import process_single
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.vision_settings import MAX_PATCHES

if TYPE_CHECKING:
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer

_MIN_PATCHES, _MAX_PATCHES = 256, 3600  # values of the processor, if the file has no pixel limits
_NEAR = 1e-5  # of the scale, as in the processor


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder, without a last norm."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd", taps=_taps(hp))
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    p.output(mlp(p, p.output_rows(x), "mm.0", "mm.2"), "embeddings", "none")


def _taps(hp: TowerParams) -> int:
    """Return table entries per patch of the most elongated image: twice one axis of the table, by two of the other."""
    return 4 * hp.table_side


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in raster order."""
    order = np.arange(math.prod(grid), dtype=np.int32)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "antialiased", _taps(hp))
    return PatchLayout(order, order, gather_rows=gather_rows, gather_weights=gather_weights)


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input with the image's number of patches, within the limits."""
    patch = settings.patch_size
    least = (settings.min_pixels or _MIN_PATCHES * patch**2) // patch**2
    n = min(max((height // patch) * (width // patch), 1, least), _most(settings))
    low, high = _NEAR / 10, 100.0
    while high - low >= _NEAR:  # the largest scale with at most n patches
        middle = (low + high) / 2
        lines, columns = _patches(height, width, middle, patch)
        low, high = (middle, high) if lines * columns <= n else (low, middle)
    lines, columns = _patches(height, width, low, patch)
    return Tiling(((lines * patch, columns * patch),))


def _patches(height: int, width: int, scale: float, patch: int) -> tuple[int, int]:
    """Return lines and columns of patches of a scaled image, rounded up."""
    return max(1, math.ceil(height * scale / patch)), max(1, math.ceil(width * scale / patch))


def _most(settings: VisionSettings) -> int:
    own = settings.max_pixels // settings.patch_size**2 if settings.max_pixels else _MAX_PATCHES
    return min(own, MAX_PATCHES)


def max_patches(hp: TowerParams) -> int:
    """Return the maximum number of patches of the file or the processor."""
    return max(hp.table_side**2, _most(hp.settings))


FAMILIES = (
    VisionFamily(
        name="phi4",
        placeholder_texts=("<image>",),
        choose_tiling=choose_tiling,
        process=partial(process_single, filter="bilinear"),
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
    ),
)
