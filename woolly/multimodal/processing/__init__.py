"""Processing of images, videos and audio: resizing, tiling and normalization before an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.multimodal.prompt_replacement import PromptReplacement, make_replacement

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.vision_settings import VisionSettings

__all__ = ["image_placeholders", "process_image"]


def process_image(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the encoder inputs of an image; raise RequestError if the family does not support its size."""
    return settings.family.process(image, settings)


def image_placeholders(size: tuple[int, int], settings: VisionSettings) -> PromptReplacement:
    """Return the placeholders of an image of this height and width, without processing pixels."""
    tiling = settings.family.choose_tiling(*size, settings)
    return make_replacement(tiling.empty_item(size, settings), settings)
