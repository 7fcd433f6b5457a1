"""MiniCPM-V: an overview with the image's aspect ratio; a large image also has slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize
from woolly.multimodal.prompt_replacement import Placeholder, input_rows

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_SLICES = 9
_MAX_AREAS = 2  # limit of an input, in squares of the encoder's side, set by its position table


def slice_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return the overview, then the slices in raster order; raise RequestError for an elongated image.

    Sides are rounded to complete rows, so an elongated input may exceed the encoder's limit.
    """
    found = _choose_tiling(height, width, settings)
    if any(high * wide > _MAX_AREAS * settings.image_size**2 for high, wide in found.sizes):
        raise RequestError(f"the image has {width} x {height} pixels, which is too elongated; split it")
    return found


def _choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    size, patch = settings.image_size, settings.patch_size * settings.merge_size
    n = min(math.ceil(width * height / size**2), settings.max_tiles or _MAX_SLICES)
    if n <= 1:
        return Tiling((_fit(height, width, size, patch, grows=True),))
    lines, columns = _grid(height, width, n, settings.max_tiles or _MAX_SLICES)
    high, wide = _whole(height, lines) / lines, _whole(width, columns) / columns
    one = _fit(high, wide, size, patch, grows=True)
    overview = _fit(height, width, size, patch, grows=False)
    return Tiling((overview, *([one] * (lines * columns))), (lines, columns))


def process_slices(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `slice_tiling`."""
    found = slice_tiling(image.height, image.width, settings)
    shown = [resize(image.pixels, *found.sizes[0], "bicubic")]
    if any(found.tiles):
        (lines, columns), (high, wide) = found.tiles, found.sizes[1]
        pixels = resize(image.pixels, lines * high, columns * wide, "bicubic")
        shown += [
            pixels[y * high : (y + 1) * high, x * wide : (x + 1) * wide] for y in range(lines) for x in range(columns)
        ]
    return ProcessedItem.of("image", [patchify(one, settings) for one in shown], tiles=found.tiles, size=image.size)


def _grid(height: int, width: int, n: int, most: int) -> tuple[int, int]:
    """Return rows and columns of n - 1, n or n + 1 slices, with the closest aspect ratio to the image."""
    counts = [i for i in (n - 1, n, n + 1) if 1 < i <= most]
    grids = [(i // columns, columns) for i in counts for columns in range(1, i + 1) if i % columns == 0]
    return min(grids, key=lambda grid: abs(math.log(width / height) - math.log(grid[1] / grid[0])), default=(1, 1))


def _fit(height: float, width: float, size: int, patch: int, *, grows: bool) -> tuple[int, int]:
    """Return the sides as multiples of `patch`, with about size x size pixels; upscale only if `grows`."""
    if height * width > size**2 or grows:
        ratio = width / height
        height = int(size / math.sqrt(ratio))
        width = int(height * ratio)
    return _whole(height, patch), _whole(width, patch)


def _whole(length: float, of: int) -> int:
    return max(round(length / of) * of, of)


def slice_parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return the image number, the overview, then slices with a newline between lines."""
    lines, columns = prepared.tiles
    overview = input_rows(prepared, 0, settings)
    parts: list[str | Placeholder] = [f"<image_id>{index}</image_id><image>", overview, "</image>"]
    for i in range(lines * columns):
        parts += ["\n" * (i > 0 and i % columns == 0) + "<slice>", input_rows(prepared, i + 1, settings), "</slice>"]
    return parts
