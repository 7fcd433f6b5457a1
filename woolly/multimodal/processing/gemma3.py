"""Gemma 3 and CogVLM: an image is squashed to a square.

Pan and scan, which the processor of Gemma 3 leaves off, is left off here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.cut import Cut
from woolly.multimodal.processing.pixels import piece_of, resize

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings


def cut(height: int, width: int, settings: VisionSettings) -> Cut:
    """Returns one square, whatever the image."""
    return Cut(((settings.image_size, settings.image_size),))


def prepare(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Returns the image as one square piece."""
    side = settings.image_size
    square = resize(image.pixels, side, side, "bicubic" if settings.projector == "cogvlm" else "bilinear")
    return ProcessedItem.of("image", [piece_of(square, settings)], size=image.size)
