"""Llama 4: tiles with 2D rope, a class row at the end, 2 x 2 pixel shuffle, three matrices.

An image keeps its aspect ratio within a grid of tiles, padded with black, with an overview.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, position_ids
from woolly.multimodal.encoder.vit import layer, max_patches, mlp, square, with_class
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.plan import Rope, Tracer

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_TILES = 16


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. GELU is the exact form."""
    quarter = hp.head_dim // 4
    rope = Rope(hp.head_dim, hp.head_dim, 10000.0, "adjacent", sections=(quarter, quarter), spectrum="each")
    x = with_class(p, p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width))
    x = p.layer_norm(p.embedding_bag(x, "v.position_embd"), "v.pre_ln", eps=hp.eps)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf", rope=rope)
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="concat")
    y = p.unary(mlp(p, y, "mm.model.mlp.1", "mm.model.mlp.2"), "gelu_erf")
    p.output(p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc")), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, with rope positions from 1, then the class row, which is not rotated."""
    patches = square(hp, grid)
    n = len(patches.order)
    order = np.append(patches.order, np.int32(-1))
    lines, columns = np.where(order >= 0, position_ids(grid, order) + 1, 0)
    is_class = np.where(order >= 0, -1, 0)
    gather_rows = np.stack([np.where(order >= 0, order, n), is_class, is_class], axis=1).astype(np.int32)
    gather_weights = np.tile(np.array([1, 1, -1], np.float32), (n + 1, 1))
    rope_positions = np.stack([columns, lines]).astype(np.int32)
    return PatchLayout(
        order, patches.outputs, rope_positions=rope_positions, gather_rows=gather_rows, gather_weights=gather_weights
    )


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return tiles and an overview, or only the image if one tile is enough."""
    lines, columns = _grid(height, width, settings.image_size, settings.max_tiles or _MAX_TILES)
    return Tiling.of_grid(lines, columns, settings.image_size)


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
    found, side = choose_tiling(image.height, image.width, settings), settings.image_size
    lines, columns = found.tiles if any(found.tiles) else (1, 1)
    room = [min(max(own, side), n * side) for own, n in zip(image.size, (lines, columns), strict=True)]
    fitted = resize(image.pixels, *_fit(image.height, image.width, *room), "bilinear")
    filled = np.zeros((lines * side, columns * side, 3), np.uint8)
    filled[: fitted.shape[0], : fitted.shape[1]] = fitted
    shown = split_tiles(filled, side)
    if any(found.tiles):
        shown.append(resize(image.pixels, side, side, "bilinear"))
    inputs = [patchify(one, settings, in_bfloat16=True) for one in shown]
    return ProcessedItem.of("image", inputs, tiles=found.tiles, size=image.size)


def _grid(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Return the grid (rows, columns) with the least upscaling, or else with the least downscaling and fewest tiles."""
    numbers = range(1, most + 1)
    grids = [(lines, columns) for lines in numbers for columns in numbers if lines * columns <= most]
    # Compared in float32, as in the processor.
    scales = [
        min(np.float32(lines * side) / np.float32(height), np.float32(columns * side) / np.float32(width))
        for lines, columns in grids
    ]
    large = [one for one in scales if one >= 1]
    chosen = min(large) if large else max(scales)
    return min((g for g, one in zip(grids, scales, strict=True) if one == chosen), key=lambda g: g[0] * g[1])


def _fit(height: int, width: int, high: int, wide: int) -> tuple[int, int]:
    """Return height and width of the image, scaled into a size at the same aspect ratio."""
    if wide / width < high / height:
        return max(1, min(math.floor(height * (wide / width)), high)), wide
    return high, max(1, min(math.floor(width * (high / height)), wide))


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return tiles with separators between columns and after each line, then the overview."""
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for i in range(lines * columns):
        is_last = i % columns == columns - 1
        parts += [input_rows(prepared, i, settings), "<|tile_y_separator|>" if is_last else "<|tile_x_separator|>"]
    return [*parts, "<|image|>", input_rows(prepared, len(prepared.inputs) - 1, settings)]


FAMILIES = (
    VisionFamily(
        name="llama4",
        begin="<|image_start|>",
        end="<|image_end|>",
        placeholder_texts=("<|image|>",),
        parts=parts,
        merge_size=2,
        choose_tiling=choose_tiling,
        process=process,
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
    ),
)
