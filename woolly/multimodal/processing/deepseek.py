"""DeepSeek-OCR: a large image is resized to a grid of tiles, with an overview letterboxed to a gray square."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.image import Image, check_pillow
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.internvl import find_closest_aspect_ratio
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import Pixels, patchify, resize, split_tiles

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_TILES, _MAX_TILES = 2, 9  # defaults if not in the file


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return an overview, preceded by tiles if the image is larger than a tile."""
    tile, overview = settings.tile_size, (settings.image_size,) * 2
    if max(height, width) <= tile:
        return Tiling((overview,))
    columns, lines = find_closest_aspect_ratio(
        height, width, tile, settings.min_tiles or _MIN_TILES, settings.max_tiles or _MAX_TILES
    )
    return Tiling(((tile, tile),) * (lines * columns) + (overview,), (lines, columns))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
    (lines, columns), tile = choose_tiling(image.height, image.width, settings).tiles, settings.tile_size
    tiles = split_tiles(resize(image.pixels, lines * tile, columns * tile, "bicubic"), tile) if lines else []
    shown = [*tiles, _within(image.pixels, settings)]
    inputs = [patchify(one, settings) for one in shown]
    return ProcessedItem.of("image", inputs, tiles=(lines, columns), size=image.size)


def _within(pixels: Pixels, settings: VisionSettings) -> Pixels:
    """Letterbox the image: keep the aspect ratio, center it in a square, pad with the mean color."""
    check_pillow()
    import PIL.Image
    from PIL import ImageOps

    side, colour = settings.image_size, tuple(int(one * 255) for one in settings.mean)
    filled = ImageOps.pad(PIL.Image.fromarray(pixels), (side, side), PIL.Image.Resampling.BICUBIC, color=colour)
    return np.asarray(filled)
