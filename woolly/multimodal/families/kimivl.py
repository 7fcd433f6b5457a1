"""Kimi-VL (MoonViT): an interpolated position table, and 2D rope with columns and lines interleaved.

An image keeps its aspect ratio within a maximum of patches; sides are padded with black to full rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import select_rows
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp, vision_rope
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_TAPS = 16
_NORM = 1e-5  # epsilon of the projector's norm
_MAX_PATCHES = 4096  # value of the processor, if the file has no pixel limit
_MAX_SIDE_PATCHES = 511  # patches per line or column, as in the processor


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. The projector norms each patch."""
    x = p.embedding_bag(
        p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd", taps=_TAPS
    )
    rope = vision_rope(hp)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu", rope=rope)
    x = p.layer_norm(p.layer_norm(x, "v.post_ln", eps=hp.eps), "mm.input_norm", eps=_NORM)
    p.output(mlp(p, p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.1", "mm.2"), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reorder head columns from interleaved pairs (columns and lines alternating) to split halves."""
    fours = np.arange(hp.head_dim).reshape(-1, 4)  # one pair for the column, then one for the line
    head = fours[:, [2, 0, 3, 1]].T.reshape(-1)
    rows = (np.arange(hp.heads)[:, None] * hp.head_dim + head).reshape(-1)
    names = (f"v.blk.{i}.attn_{one}.{part}" for i in range(hp.n_layers) for one in "qk" for part in ("weight", "bias"))
    return {name: select_rows(hp.tensors[name], rows) for name in names if name in hp.tensors}


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bicubic", _TAPS)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    return PatchLayout(
        order, outputs, rope_positions=position_ids(grid, order), gather_rows=gather_rows, gather_weights=gather_weights
    )


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of the largest image, including a row and a column of padding."""
    pixels = hp.settings.max_pixels
    n = pixels // hp.settings.patch_size**2 if pixels else _MAX_PATCHES
    return n + 2 * hp.merge * (_MAX_SIDE_PATCHES + 1) + 4


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input; raise RequestError if a side is too long."""
    row = settings.patch_size * settings.merge_size
    high, wide = (-(-one // row) * row for one in _shrunk(height, width, settings))
    if max(high, wide) > _MAX_SIDE_PATCHES * settings.patch_size:
        raise RequestError(
            f"the image has {width} x {height} pixels, but this model takes at most"
            f" {_MAX_SIDE_PATCHES * settings.patch_size} pixels per side; split the image"
        )
    return Tiling(((high, wide),))


def process_padded(
    image: Image, settings: VisionSettings, fit: Callable[[int, int, VisionSettings], tuple[int, int]]
) -> ProcessedItem:
    """Return the image, resized to the size of `fit`, with black padding at the bottom and on the right."""
    high, wide = settings.family.choose_tiling(image.height, image.width, settings).sizes[0]
    pixels = resize(image.pixels, *fit(image.height, image.width, settings), "bicubic")
    filled = np.zeros((high, wide, 3), np.uint8)
    filled[: len(pixels), : pixels.shape[1]] = pixels
    return ProcessedItem.of("image", [patchify(filled, settings)], size=image.size)


def _shrunk(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Return the sides of an image within the maximum of complete patches."""
    patch = settings.patch_size
    most = (settings.max_pixels or _MAX_PATCHES * patch**2) // patch**2
    if (n := (height // patch) * (width // patch)) <= most:
        return height, width
    scale = math.sqrt(most / n)
    return max(1, int(height * scale)), max(1, int(width * scale))


FAMILIES = (
    VisionFamily(
        name="kimivl",
        begin="<|media_start|>image<|media_content|>",
        end="<|media_end|>",
        placeholder_texts=("<|media_start|>image<|media_content|><|media_pad|><|media_end|>", "<|media_pad|>"),
        merge_size=2,
        choose_tiling=choose_tiling,
        process=partial(process_padded, fit=_shrunk),
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
    ),
)
