"""Image sizes as multiples of a row, at nearly the same aspect ratio, within limits of pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.vision_settings import MAX_PATCHES

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

MAX_RATIO = 200  # maximum aspect ratio of the processor

# Rows of an image if the file has no pixel limit. The processors allow up to 16,384 rows, about the size of a
# 12-megapixel photo, which exceeds most contexts.
_MIN_ROWS, _MAX_ROWS = 4, 4096


def smart_tiling(
    height: int, width: int, settings: VisionSettings, min_rows: int = _MIN_ROWS, *, min_side_rows: int = 0
) -> Tiling:
    """Return a single input with nearly the image's aspect ratio; raise RequestError for an elongated image.

    `min_rows` applies if the file has no pixel limit; `min_side_rows` are the rows of a side before the limits apply.
    """
    side = settings.patch_size * settings.merge_size
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RequestError(
            f"the image has {width} x {height} pixels, but the limit of the aspect ratio is {MAX_RATIO}; split it"
        )
    least = settings.min_pixels or min_rows * side**2
    return Tiling((smart_resize(height, width, side, least, max_pixels(settings), min_side_rows * side),))


def max_pixels(settings: VisionSettings) -> int:
    """Return the maximum number of pixels."""
    side = settings.patch_size * settings.merge_size
    return min(settings.max_pixels or _MAX_ROWS * side**2, MAX_PATCHES * settings.patch_size**2)


def limit_rows(settings: VisionSettings, metadata: Mapping[str, Any], most: int) -> VisionSettings:
    """Set the maximum number of pixels to `most` rows if the file has none."""
    return replace(settings, max_pixels=settings.max_pixels or most * (settings.patch_size * settings.merge_size) ** 2)


def smart_resize(height: int, width: int, side: int, least: int, most: int, min_side: int = 0) -> tuple[int, int]:
    """Return the sides as multiples of `side`, with `least` to `most` pixels, at nearly the same aspect ratio.

    Sides are rounded to at least `min_side` before these limits apply.
    """
    high, wide = (max(min_side, round(one / side) * side) for one in (height, width))
    if high * wide > most:
        shrink = math.sqrt(height * width / most)
        return max(side, math.floor(height / shrink / side) * side), max(side, math.floor(width / shrink / side) * side)
    if high * wide < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return high, wide
