"""LFM2-VL: SigLIP 2 with an interpolated position table, 2 x 2 pixel shuffle, two matrices.

An image keeps its aspect ratio; a large image becomes 512-pixel tiles and an overview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.aspect_grid import find_closest_aspect_ratio
from woolly.multimodal.processing.smart_resize import smart_resize
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_ROWS, _MAX_ROWS = 64, 256  # of an untiled image; values of the processor, not in files
_TILE, _MIN_TILES, _MAX_TILES = 512, 2, 10
_TOLERANCE = 2.0  # an image is tiled above this multiple of the maximum rows


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd", taps=_taps(hp))
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    x = p.layer_norm(x, "v.post_ln", eps=hp.eps) if p.has("v.post_ln") else x
    y = p.merge_patches(x, rows=hp.merge**2, kind="concat")
    if p.has("mm.input_norm"):
        y = p.layer_norm(y, "mm.input_norm", eps=1e-5)
    p.output(mlp(p, y, "mm.1", "mm.2"), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "antialiased", _taps(hp))
    return PatchLayout(
        order,
        np.arange(0, len(order), hp.merge**2, dtype=np.int32),
        gather_rows=gather_rows,
        gather_weights=gather_weights,
    )


def _taps(hp: TowerParams) -> int:
    """Return the number of interpolation taps for the most elongated image: a complete table axis, two taps wide."""
    return 2 * hp.table_side + 2


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of a 512-pixel tile, or for the maximum number of rows."""
    return max(hp.table_side**2, 1024)


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return the untiled image, or tiles and an overview."""
    side = settings.patch_size * settings.merge_size
    least = settings.min_pixels or _MIN_ROWS * side**2
    most = settings.max_pixels or _MAX_ROWS * side**2
    high, wide = (round(one / side) * side for one in (height, width))
    whole = max(side, high), max(side, wide)
    if not least <= whole[0] * whole[1] <= most:
        whole = smart_resize(height, width, side, least, most)
    if max(settings.patch_size, high) * max(settings.patch_size, wide) <= most * _TOLERANCE:
        return Tiling((whole,))
    min_tiles, max_tiles = settings.min_tiles or _MIN_TILES, settings.max_tiles or _MAX_TILES
    columns, lines = find_closest_aspect_ratio(height, width, _TILE, min_tiles, max_tiles)
    return Tiling(((_TILE, _TILE),) * (lines * columns) + (whole,), (lines, columns))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
    found = choose_tiling(image.height, image.width, settings)
    shown = [resize(image.pixels, *found.sizes[-1], "bilinear")]
    if any(found.tiles):
        lines, columns = found.tiles
        shown = [*split_tiles(resize(image.pixels, lines * _TILE, columns * _TILE, "bilinear"), _TILE), *shown]
    return ProcessedItem.of("image", [patchify(one, settings) for one in shown], tiles=found.tiles, size=image.size)


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return tiles with row and column marks, then the overview; an untiled image has no marks."""
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for i in range(lines * columns):
        parts += [f"<|img_row_{i // columns + 1}_col_{i % columns + 1}|>", input_rows(prepared, i, settings)]
    return [*parts, "<|img_thumbnail|>" * bool(lines), input_rows(prepared, len(prepared.inputs) - 1, settings)]


FAMILIES = (
    VisionFamily(
        name="lfm2",
        begin="<|image_start|>",
        end="<|image_end|>",
        placeholder_texts=("<image>",),
        parts=parts,
        merge_size=2,
        choose_tiling=choose_tiling,
        process=process,
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
    ),
)
