"""Qwen 2 to 3 VL, GLM 4V, Hunyuan VL, PaddleOCR-VL, dots.ocr: sides are multiples of the row size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize
from woolly.multimodal.vision_settings import MAX_PATCHES, VisionSettings

if TYPE_CHECKING:
    from woolly.multimodal.image import Image

MAX_RATIO = 200  # maximum aspect ratio of the processor

# Rows of an image if the file has no pixel limit. The processors allow up to 16,384 rows, about the size of a
# 12-megapixel photo, which exceeds most contexts.
_MIN_ROWS = {"qwen3vl_merger": 64, "glm4v": 8, "hunyuanvl": 256}
_MAX_ROWS = 4096


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input with nearly the image's aspect ratio; raise RequestError for an elongated image."""
    side = settings.patch_size * settings.merge_size
    least = settings.min_pixels or _MIN_ROWS.get(settings.projector, 4) * side**2
    most = max_pixels(settings)
    if settings.projector == "glm4v" and min(height, width) < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    elif settings.projector == "paddleocr" and min(height, width) < side:
        height, width = max(height, side), max(width, round(width * side / height) if height < side else width)
        height, width = (round(height * side / width), side) if width < side else (height, width)
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RequestError(
            f"the image has {width} x {height} pixels, but the limit of the aspect ratio is {MAX_RATIO}; split it"
        )
    return Tiling((smart_resize(height, width, side, least, most),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image as a single input."""
    pixels = resize(image.pixels, *choose_tiling(image.height, image.width, settings).sizes[0], "bicubic")
    return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)


def max_pixels(settings: VisionSettings) -> int:
    """Return the maximum number of pixels."""
    side = settings.patch_size * settings.merge_size
    return min(settings.max_pixels or _MAX_ROWS * side**2, MAX_PATCHES * settings.patch_size**2)


def smart_resize(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Return the sides as multiples of `side`, with `least` to `most` pixels, at nearly the same aspect ratio."""
    high, wide = round(height / side) * side, round(width / side) * side
    if high * wide > most:
        shrink = math.sqrt(height * width / most)
        return max(side, math.floor(height / shrink / side) * side), max(side, math.floor(width / shrink / side) * side)
    if high * wide < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return high, wide
