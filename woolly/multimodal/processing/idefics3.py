"""Idefics 3 and SmolVLM: an image is resized to a longest side, then split into tiles, with an overview."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_SIDE = 4096  # value of the processor
_TILES = 4  # tiles of the longest side if its length is not in the file


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return tiles and an overview."""
    size = settings.image_size
    whole = _whole_tiles(*_fit_longest(height, width, _max_side(settings)), size)
    return Tiling.of_grid(whole[0] // size, whole[1] // size, size)


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return tiles, then the overview, or only the overview if one tile is enough."""
    size, longest = settings.image_size, _max_side(settings)
    # Resize in several steps, as in the processor: a single resize has a different result.
    pixels = resize(image.pixels, *_fit_longest(image.height, image.width, longest), "lanczos")
    pixels = resize(pixels, *_whole_tiles(pixels.shape[0], pixels.shape[1], size), "lanczos")
    lines, columns = pixels.shape[0] // size, pixels.shape[1] // size
    if (lines, columns) == (1, 1):
        return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)
    tiles = [*split_tiles(pixels, size), resize(pixels, size, size, "lanczos")]
    inputs = [patchify(tile, settings) for tile in tiles]
    return ProcessedItem.of("image", inputs, tiles=(lines, columns), size=image.size)


def _max_side(settings: VisionSettings) -> int:
    """Return the longest side before tiling."""
    return settings.preproc_image_size or _TILES * settings.image_size


def _fit_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the sides with the longer one at `longest` and the other even, within the processor's limit."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > _MAX_SIDE:
        height, width = int(_MAX_SIDE / ratio), _MAX_SIDE
    elif height > width and height > _MAX_SIDE:
        height, width = _MAX_SIDE, int(_MAX_SIDE * ratio)
    return max(height, 1), max(width, 1)


def _whole_tiles(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the sides rounded up to complete tiles, starting with the longer side."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / size) * size
        height = math.ceil(int(width / ratio) / size) * size
    else:
        height = math.ceil(height / size) * size
        width = math.ceil(int(height * ratio) / size) * size
    return max(height, size), max(width, size)
