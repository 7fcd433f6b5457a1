"""LLaVA 1.5 and 1.6: an image is padded to a square, or resized to one of several sizes and split into tiles.

1.5 pads with the mean color, as in training (`do_pad` of transformers' processor; without it, CLIP's processor
center-crops). 1.6 pads with black; its overview is resized regardless of the aspect ratio.
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

_MAX_SIDE = 14_142  # maximum side of the square (600 MB), enough for 100 megapixels at 2:1


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single square, or for 1.6 an overview, then tiles."""
    side = settings.image_size
    if settings.pinpoints:
        high, wide = select_best_resolution(height, width, settings)
        return Tiling.of_grid(high // side, wide // side, side, is_overview_first=True)
    if max(height, width) > _MAX_SIDE and height != width:
        raise RequestError(
            f"the image has {width} x {height} pixels, but this model, which pads it to a square,"
            f" takes at most {_MAX_SIDE} pixels per side; send a smaller image"
        )
    return Tiling(((side, side),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
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
    """Return the tile grid size with the most image pixels; of equal ones, the smallest."""
    best, shown, wasted = (0, 0), 0, math.inf
    for high, wide in settings.pinpoints:
        scale = min(wide / width, high / height)
        own = min(int(width * scale) * int(height * scale), width * height)
        if own > shown or (own == shown and wide * high - own < wasted):
            best, shown, wasted = (high, wide), own, wide * high - own
    return best if any(best) else settings.pinpoints[0]


def _fit(height: int, width: int, high: int, wide: int) -> tuple[int, int]:
    """Return height and width of the image, scaled into a size at the same aspect ratio."""
    if wide / width < high / height:
        return max(1, min(math.ceil(height * (wide / width)), high)), wide
    return high, max(1, min(math.ceil(width * (high / height)), wide))


def _pad_center(pixels: Pixels, high: int, wide: int, colour: list[int]) -> Pixels:
    """Return the pixels centered in a larger image."""
    height, width = pixels.shape[:2]
    if (height, width) == (high, wide):
        return pixels
    out = np.empty((high, wide, 3), np.uint8)
    out[:] = colour
    top, left = (high - height) // 2, (wide - width) // 2
    out[top : top + height, left : left + width] = pixels
    return out
