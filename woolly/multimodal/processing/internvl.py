"""InternVL: an image is resized to the grid of tiles with the closest aspect ratio, with an overview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_TILES, _MAX_TILES = 1, 12  # defaults if not in the file


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return tiles and an overview."""
    least, most = settings.min_tiles or _MIN_TILES, settings.max_tiles or _MAX_TILES
    columns, lines = find_closest_aspect_ratio(height, width, settings.image_size, least, most)
    return Tiling.of_grid(lines, columns, settings.image_size)


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return tiles, then the overview, or only the overview if one tile is enough."""
    size = settings.image_size
    tiles = choose_tiling(image.height, image.width, settings).tiles
    lines, columns = tiles if any(tiles) else (1, 1)
    pixels = resize(image.pixels, lines * size, columns * size, "bicubic")
    if not any(tiles):
        return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)
    shown = [*split_tiles(pixels, size), resize(image.pixels, size, size, "bicubic")]
    return ProcessedItem.of("image", [patchify(one, settings) for one in shown], tiles=tiles, size=image.size)


def find_closest_aspect_ratio(height: int, width: int, size: int, least: int, most: int) -> tuple[int, int]:
    """Return columns and rows of the grid with the closest aspect ratio.

    Among equally close grids, choose the largest with less than twice the pixels of the image.
    """
    numbers = range(1, most + 1)
    grids = [(columns, lines) for columns in numbers for lines in numbers if least <= columns * lines <= most]
    best, nearest = (1, 1), float("inf")
    for columns, lines in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - columns / lines)
        if distance < nearest:
            best, nearest = (columns, lines), distance
        elif distance == nearest and height * width > 0.5 * size * size * columns * lines:
            best = (columns, lines)
    return best
