"""Tiling: input sizes of an image, computed before any pixel is resized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.processed_item import EncoderInput, ProcessedItem

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings


@dataclass(frozen=True)
class Tiling:
    """Height and width of each input in pixels, in prompt order, and rows and columns of tiles."""

    sizes: tuple[tuple[int, int], ...]
    tiles: tuple[int, int] = (0, 0)

    @classmethod
    def of_grid(cls, lines: int, columns: int, size: int, *, is_overview_first: bool = False) -> Tiling:
        """Return square tiles and an overview of the same size, without an overview for a single tile.

        A leading overview is always included.
        """
        if (lines, columns) == (1, 1) and not is_overview_first:
            return cls(((size, size),))
        return cls(((size, size),) * (lines * columns + 1), (lines, columns))

    def empty_item(self, size: tuple[int, int], settings: VisionSettings) -> ProcessedItem:
        """Return an item without values for an image of this height and width, to count its rows."""
        patch = settings.patch_size
        inputs = []
        for height, width in self.sizes:
            grid = (1, height // patch, width // patch)
            nothing = np.broadcast_to(np.float32(0), (grid[1] * grid[2], 3 * patch**2))  # takes no memory
            inputs.append(EncoderInput(nothing, grid))
        return ProcessedItem("image", tuple(inputs), b"", self.tiles, size)
