"""Image transforms for all families: resize, split into tiles, normalize, patchify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from woolly.multimodal.image import check_pillow
from woolly.multimodal.processed_item import EncoderInput

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

Pixels = npt.NDArray[np.uint8]  # [height, width, 3]
Filter = Literal["bilinear", "bicubic", "lanczos"]


def resize(pixels: Pixels, height: int, width: int, filter: Filter) -> Pixels:
    """Resize with Pillow's filters, which widen when downscaling (antialiasing)."""
    if pixels.shape[:2] == (height, width):
        return pixels
    check_pillow()
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling[filter.upper()]))


def split_tiles(pixels: Pixels, size: int) -> list[Pixels]:
    """Split into tiles of `size` x `size` pixels, in raster order."""
    height, width = pixels.shape[:2]
    return [pixels[y : y + size, x : x + size] for y in range(0, height, size) for x in range(0, width, size)]


def patchify(pixels: Pixels, settings: VisionSettings, *, in_bfloat16: bool = False) -> EncoderInput:
    """Normalize pixels from 0..1 by mean and deviation, and return patches in raster order.

    Float32 values are divided by 255 first, as in transformers, for equal bits. `in_bfloat16` rounds each result to
    bfloat16.
    """
    patch = settings.patch_size
    height, width = pixels.shape[0] // patch, pixels.shape[1] // patch
    scaled = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)
    mean, std = (np.array(one, np.float32) for one in (settings.mean, settings.std))
    # Normalized value of each of 256 levels of red, green and blue.
    table = _rounded(_rounded(_rounded(scaled, in_bfloat16)[:, None] - mean, in_bfloat16) / std, in_bfloat16)
    patches = pixels[: height * patch, : width * patch].reshape(height, patch, width, patch, 3)
    patches = patches.transpose(0, 2, 4, 1, 3).reshape(height * width, 3, patch * patch)
    values = np.empty(patches.shape, np.float32)
    for colour in range(3):
        values[:, colour] = table[patches[:, colour], colour]
    return EncoderInput(values.reshape(height * width, -1), (1, height, width))


def _rounded(values: npt.NDArray[np.float32], in_bfloat16: bool) -> npt.NDArray[np.float32]:
    """Round float32 to bfloat16, with ties to even."""
    if not in_bfloat16:
        return values
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper: npt.NDArray[np.uint32] = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)
