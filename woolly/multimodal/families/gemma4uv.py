"""Gemma 4 12B: 48 x 48 pixels are a row, with norms and learned positions, but without layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.families import gemma4v
from woolly.multimodal.family import VisionFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer

_TABLE = "v.position_embd.weight"
_NORM = 1e-5  # epsilon of the norms of patches; files have the epsilon of the last norm


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Fold merging into the patch size: each merged patch is one row, but files give the size before merging."""
    return replace(settings, patch_size=settings.patch_size * settings.merge_size, merge_size=1)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the norms, the patch embedding and the projector."""
    x = p.layer_norm(p.input(width=hp.patch), "v.patch_norm.1", eps=_NORM)
    x = p.layer_norm(p.linear(x, "v.patch_embd", width=hp.width), "v.patch_norm.2", eps=_NORM)
    x = p.layer_norm(p.embedding_bag(x, "v.position_embd", taps=2), "v.patch_norm.3", eps=_NORM)
    y = p.rms_norm(p.output_rows(x), eps=hp.eps)
    p.output(p.linear(y, "mm.input_projection", width=p.rows("mm.input_projection")), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Join the position tables of columns and lines."""
    table = hp.tensors[_TABLE]
    return {_TABLE: replace(table, shape=(table.n_elements // hp.width, hp.width))}


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in raster order."""
    order = np.arange(grid[1] * grid[2], dtype=np.int32)
    gather_rows = gemma4v.position_rows(hp, grid, order)
    return PatchLayout(order, order, gather_rows=gather_rows, gather_weights=np.ones(gather_rows.shape, np.float32))


FAMILIES = (
    VisionFamily(
        name="gemma4uv",
        begin="<|image>",
        end="<image|>",
        placeholder_texts=("<|image|>",),
        is_bidirectional=True,
        merge_size=3,
        read=read,
        choose_tiling=gemma4v.choose_tiling,
        has_layers=False,
        build=build,
        patch_layout=patch_layout,
        max_patches=gemma4v.max_patches,
        remake=remake,
    ),
)
