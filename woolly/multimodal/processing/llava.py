"""LLaVA 1.5 and 1.6: an image is padded to a square, or laid over one of some sizes and cut into tiles.

1.5 pads in the mean colour, which its training did: transformers has this as `do_pad` of its processor; without it,
CLIP's crops the middle. 1.6 pads in black, and its towers see a squashed overview first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import Pixels, patchify, resize, split_tiles

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_SIDE = 14_142  # of the square: 600 MB. 100 million pixels of 2 to 1 fit; a line of 65,535 would take 12.9 GB


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Returns one square; of 1.6, an overview, then tiles."""
    side = settings.image_size
    if settings.pinpoints:
        high, wide = select_best_resolution(height, width, settings)
        return Tiling.of_grid(high // side, wide // side, side, is_overview_first=True)
    if max(height, width) > _MAX_SIDE and height != width:
        raise RequestError(
            f"the image has {width} x {height} pixels, and this model, which fills it up to a square,"
            f" takes sides of at most {_MAX_SIDE}; send a smaller one"
        )
    return Tiling(((side, side),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Returns the pieces of `choose_tiling`."""
    found, side = choose_tiling(image.height, image.width, settings), settings.image_size
    if not settings.pinpoints:
        high = max(image.size)
        filled = _pad_center(image.pixels, high, high, [int(one * 255) for one in settings.mean])
        return ProcessedItem.of("image", [patchify(resize(filled, side, side, "bicubic"), settings)], size=image.size)
    high, wide = found.tiles[0] * side, found.tiles[1] * side
    fitted = resize(image.pixels, *_fit(image.height, image.width, high, wide), "bicubic")
    shown = [
        resize(image.pixels, side, side, "bicubic"),
        *split_tiles(_pad_center(fitted, high, wide, [0, 0, 0]), side),
    ]
    return ProcessedItem.of("image", [patchify(one, settings) for one in shown], tiles=found.tiles, size=image.size)


def select_best_resolution(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Returns the size of all tiles that shows most pixels of the image, and of those the smallest."""
    best, shown, wasted = (0, 0), 0, math.inf
    for high, wide in settings.pinpoints:
        scale = min(wide / width, high / height)
        own = min(int(width * scale) * int(height * scale), width * height)
        if own > shown or (own == shown and wide * high - own < wasted):
            best, shown, wasted = (high, wide), own, wide * high - own
    return best if any(best) else settings.pinpoints[0]


def _fit(height: int, width: int, high: int, wide: int) -> tuple[int, int]:
    """Returns height and width of the image within a size, in its own shape."""
    if wide / width < high / height:
        return max(1, min(math.ceil(height * (wide / width)), high)), wide
    return high, max(1, min(math.ceil(width * (high / height)), wide))


def _pad_center(pixels: Pixels, high: int, wide: int, colour: list[int]) -> Pixels:
    """Returns the pixels in the middle of a larger image."""
    height, width = pixels.shape[:2]
    if (height, width) == (high, wide):
        return pixels
    out = np.empty((high, wide, 3), np.uint8)
    out[:] = colour
    top, left = (high - height) // 2, (wide - width) // 2
    out[top : top + height, left : left + width] = pixels
    return out
