"""Image processors, one file per family: resizing, tiling and normalization before the vision encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from woolly.multimodal.processing import (
    deepseek,
    gemma3,
    gemma4,
    idefics3,
    internvl,
    kimi,
    lfm2,
    llama4,
    llava,
    minicpm,
    pixtral,
    qwen,
)
from woolly.multimodal.prompt_replacement import PromptReplacement, make_replacement

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.processing.tiling import Tiling
    from woolly.multimodal.vision_settings import VisionSettings

__all__ = ["IMAGE_PROCESSORS", "ImageProcessor", "image_placeholders", "process_image"]


class ImageProcessor(Protocol):
    """Interface of the modules in this folder."""

    def choose_tiling(self, height: int, width: int, settings: VisionSettings) -> Tiling:
        """Return the tiling of an image of this size; raise RequestError for an unsupported aspect ratio."""

    def process(self, image: Image, settings: VisionSettings) -> ProcessedItem:
        """Return the encoder inputs of an image."""


# Keyed by `clip.projector_type`.
IMAGE_PROCESSORS: Mapping[str, ImageProcessor] = {
    "gemma3": gemma3,
    "gemma3nv": gemma3,
    "gemma4v": gemma4,
    "mlp": llava,
    "cogvlm": gemma3,
    "qwen2vl_merger": qwen,
    "qwen2.5vl_merger": qwen,
    "qwen2.5o": qwen,
    "qwen3vl_merger": qwen,
    "pixtral": pixtral,
    "lightonocr": pixtral,
    "idefics3": idefics3,
    "internvl": internvl,
    "lfm2": lfm2,
    "llama4": llama4,
    "glm4v": qwen,
    "paddleocr": qwen,
    "resampler": minicpm,
    "minicpmv4_6": minicpm,
    "kimivl": kimi,
    "dots_ocr": qwen,
    "hunyuanvl": qwen,
    "deepseekocr": deepseek,
}


def process_image(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the encoder inputs of an image; raise RequestError if the family does not support its size."""
    return IMAGE_PROCESSORS[settings.projector].process(image, settings)


def image_placeholders(size: tuple[int, int], settings: VisionSettings) -> PromptReplacement:
    """Return the placeholders of an image of this height and width, without processing pixels."""
    tiling = IMAGE_PROCESSORS[settings.projector].choose_tiling(*size, settings)
    return make_replacement(tiling.empty_item(size, settings), settings)
