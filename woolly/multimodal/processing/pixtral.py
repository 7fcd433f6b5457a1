"""Pixtral, Mistral 3, LightOnOCR: an image keeps its aspect ratio within a longest side, rounded up to full rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input within the longest side."""
    side = settings.patch_size * settings.merge_size
    shrink = max(height, width) / (settings.preproc_image_size or settings.image_size)
    if shrink > 1:
        height, width = math.floor(height / shrink), math.floor(width / shrink)
    return Tiling(((max(1, math.ceil(height / side)) * side, max(1, math.ceil(width / side)) * side),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image as a single input."""
    pixels = resize(image.pixels, *choose_tiling(image.height, image.width, settings).sizes[0], "bicubic")
    return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)
