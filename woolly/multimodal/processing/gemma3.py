"""Gemma 3 and CogVLM: an image is resized to a square, regardless of its aspect ratio.

Pan and scan is not implemented; Gemma 3's processor disables it by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single square for any image."""
    return Tiling(((settings.image_size, settings.image_size),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image as a single square input."""
    side = settings.image_size
    square = resize(image.pixels, side, side, "bicubic" if settings.projector == "cogvlm" else "bilinear")
    return ProcessedItem.of("image", [patchify(square, settings)], size=image.size)
