"""LFM2-VL: an image keeps its shape within some rows; a large one is cut into tiles of 512, then an overview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.cut import Cut
from woolly.multimodal.processing.internvl import choose_grid
from woolly.multimodal.processing.pixels import piece_of, resize, tiles_of
from woolly.multimodal.processing.qwen import fit_sides

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_ROWS, _MAX_ROWS = 64, 256  # of the whole image; the processor's, files do not say
_TILE, _MIN_TILES, _MAX_TILES = 512, 2, 10
_TOLERANCE = 2.0  # an image of as many times the most rows is still whole


def cut(height: int, width: int, settings: VisionSettings) -> Cut:
    """Returns the image whole, or tiles and an overview."""
    side = settings.patch_size * settings.merge
    least = settings.min_pixels or _MIN_ROWS * side**2
    most = settings.max_pixels or _MAX_ROWS * side**2
    high, wide = (round(one / side) * side for one in (height, width))
    whole = max(side, high), max(side, wide)
    if not least <= whole[0] * whole[1] <= most:
        whole = fit_sides(height, width, side, least, most)
    if max(settings.patch_size, high) * max(settings.patch_size, wide) <= most * _TOLERANCE:
        return Cut((whole,))
    min_tiles, max_tiles = settings.min_tiles or _MIN_TILES, settings.max_tiles or _MAX_TILES
    columns, lines = choose_grid(height, width, _TILE, min_tiles, max_tiles)
    return Cut(((_TILE, _TILE),) * (lines * columns) + (whole,), (lines, columns))


def prepare(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Returns the pieces of `cut`."""
    found = cut(image.height, image.width, settings)
    shown = [resize(image.pixels, *found.sizes[-1], "bilinear")]
    if any(found.tiles):
        lines, columns = found.tiles
        shown = [*tiles_of(resize(image.pixels, lines * _TILE, columns * _TILE, "bilinear"), _TILE), *shown]
    return ProcessedItem.of("image", [piece_of(one, settings) for one in shown], tiles=found.tiles, size=image.size)
