"""Kimi K2.5 and K2.6: Kimi-VL's encoder with rope by columns, then lines, and larger images."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.families.kimivl import process_padded
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.tiling import Tiling
from woolly.plan import Rope

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer

_MAX_PATCHES = 16384  # value of the processor, if the file has no pixel limit
_MAX_SIDE_PATCHES = 512  # per line or column
_TABLE = "v.position_embd.weight"
_TAPS = 16


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input with sides rounded up to full rows."""
    row = settings.patch_size * settings.merge_size
    high, wide = (-(-one // row) * row for one in _shrunk(height, width, settings))
    return Tiling(((high, wide),))


def _shrunk(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Return the sides of an image within the maximum of patches, of all and per side. Images are never enlarged."""
    patch = settings.patch_size
    n, longest = max(1, (height // patch) * (width // patch)), _MAX_SIDE_PATCHES * patch
    scale = min(1.0, math.sqrt(_max_patches(settings) / n), longest / height, longest / width)
    return max(1, int(height * scale)), max(1, int(width * scale))


def _max_patches(settings: VisionSettings) -> int:
    return min(_MAX_PATCHES, (settings.max_pixels or _MAX_PATCHES * settings.patch_size**2) // settings.patch_size**2)


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. The projector norms each patch."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd", taps=_TAPS)
    quarter = hp.head_dim // 4
    rope = Rope(hp.head_dim, hp.head_dim, 10000.0, "adjacent", sections=(quarter, quarter), spectrum="each")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu", rope=rope)
    x = p.layer_norm(p.layer_norm(x, "v.post_ln", eps=hp.eps), "mm.input_norm", eps=hp.eps)
    y = p.merge_patches(x, rows=hp.merge**2, kind="concat")
    p.output(mlp(p, y, "mm.1", "mm.2"), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape the position table, [lines, columns, width], to a matrix."""
    table = hp.tensors[_TABLE]
    return {_TABLE: replace(table, shape=(table.n_elements // hp.width, hp.width))}


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bicubic", _TAPS)
    return PatchLayout(
        order,
        np.arange(0, len(order), hp.merge**2, dtype=np.int32),
        rope_positions=np.ascontiguousarray(position_ids(grid, order)[::-1]),
        gather_rows=gather_rows,
        gather_weights=gather_weights,
    )


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of the largest image, including a row and a column of padding."""
    return _max_patches(hp.settings) + 2 * hp.merge * (_MAX_SIDE_PATCHES + 1) + 4


FAMILIES = (
    VisionFamily(
        name="kimik25",
        begin="<|media_begin|>image<|media_content|>",
        end="<|media_end|>",
        placeholder_texts=("<|media_begin|>image<|media_content|><|media_pad|><|media_end|>", "<|media_pad|>"),
        merge_size=2,
        choose_tiling=choose_tiling,
        process=partial(process_padded, fit=_shrunk),
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
    ),
)
