"""Llama 4: an image keeps its aspect ratio within a grid of tiles, padded with black, with an overview."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_TILES = 16


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
