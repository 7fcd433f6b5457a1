"""Processing of an image as a single input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import Filter, patchify, resize

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings


def square_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a square of the trained size for any image."""
    return Tiling(((settings.image_size, settings.image_size),))


def process_single(image: Image, settings: VisionSettings, filter: Filter = "bicubic") -> ProcessedItem:
    """Return the image, resized to the only size of its tiling."""
    (size,) = settings.family.choose_tiling(image.height, image.width, settings).sizes
    return ProcessedItem.of("image", [patchify(resize(image.pixels, *size, filter), settings)], size=image.size)
