"""LFM2-VL: an image keeps its aspect ratio; a large image becomes 512-pixel tiles and an overview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.internvl import find_closest_aspect_ratio
from woolly.multimodal.processing.qwen import smart_resize
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_ROWS, _MAX_ROWS = 64, 256  # of an untiled image; values of the processor, not in files
_TILE, _MIN_TILES, _MAX_TILES = 512, 2, 10
_TOLERANCE = 2.0  # an image is tiled above this multiple of the maximum rows


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
