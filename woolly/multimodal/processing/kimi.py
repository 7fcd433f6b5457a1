"""Kimi-VL: an image keeps its aspect ratio within a maximum of patches; sides are padded with black to full rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

MAX_PATCHES = 4096  # value of the processor, if the file has no pixel limit
MAX_SIDE_PATCHES = 511  # patches per line or column, as in the processor


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input; raise RequestError if a side is too long."""
    row = settings.patch_size * settings.merge_size
    high, wide = (-(-one // row) * row for one in _shrunk(height, width, settings))
    if max(high, wide) > MAX_SIDE_PATCHES * settings.patch_size:
        raise RequestError(
            f"the image has {width} x {height} pixels, but this model takes at most"
            f" {MAX_SIDE_PATCHES * settings.patch_size} pixels per side; split the image"
        )
    return Tiling(((high, wide),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image as a single input, with black padding at the bottom and on the right."""
    high, wide = choose_tiling(image.height, image.width, settings).sizes[0]
    pixels = resize(image.pixels, *_shrunk(image.height, image.width, settings), "bicubic")
    filled = np.zeros((high, wide, 3), np.uint8)
    filled[: len(pixels), : pixels.shape[1]] = pixels
    return ProcessedItem.of("image", [patchify(filled, settings)], size=image.size)


def _shrunk(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Return the sides of an image within the maximum of complete patches."""
    patch = settings.patch_size
    most = (settings.max_pixels or MAX_PATCHES * patch**2) // patch**2
    if (n := (height // patch) * (width // patch)) <= most:
        return height, width
    scale = math.sqrt(most / n)
    return max(1, int(height * scale)), max(1, int(width * scale))
