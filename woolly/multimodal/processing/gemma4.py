"""Gemma 4: an image keeps its aspect ratio within a maximum of rows. The encoder normalizes pixels from 0 to 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_ROWS = 280  # value of the processor; not in files


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input with as many rows as the aspect ratio allows."""
    side = settings.patch_size * settings.merge_size
    most = settings.max_pixels or _MAX_ROWS * side**2
    grow = math.sqrt(most / (height * width))
    high, wide = int(grow * height // side), int(grow * width // side)
    if high == wide == 0:
        raise RequestError(f"the image has {width} x {height} pixels, which is too small; send a larger image")
    longest = most // side**2
    if high == 0:
        high, wide = 1, min(width // height, longest)
    elif wide == 0:
        high, wide = min(height // width, longest), 1
    return Tiling(((high * side, wide * side),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image as a single input."""
    pixels = resize(image.pixels, *choose_tiling(image.height, image.width, settings).sizes[0], "bicubic")
    return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)
