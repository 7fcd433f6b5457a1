"""Vision settings of a projector (mmproj) file, read from its `clip.*` keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import text_of
from woolly.multimodal.registry import find_vision_family, vision_families

if TYPE_CHECKING:
    from woolly.multimodal.family import VisionFamily
    from woolly.multimodal.processed_item import Modality, ProcessedItem
    from woolly.multimodal.prompt_replacement import Placeholder

# Maximum patches of an input, even if the file allows more: 16,384 patches of 14 x 14 are 1,792 x 1,792 pixels.
MAX_PATCHES = 16384

_MAX_INT = (1 << 31) - 1  # maximum of any integer: pixels, rows
_MAX_TILES = 1024  # choosing a grid takes time that grows with the tiles


@dataclass(frozen=True)
class VisionSettings:
    """Image parameters of a vision encoder. Values missing in the file are None, and the family's defaults apply."""

    kind: Modality
    projector: str  # `clip.projector_type`
    image_size: int  # side of an image or a tile in pixels
    patch_size: int
    mean: tuple[float, ...]  # red, green and blue
    std: tuple[float, ...]
    merge_size: int = 1  # patches per side of a row
    min_pixels: int | None = None
    max_pixels: int | None = None
    min_tiles: int | None = None
    max_tiles: int | None = None
    preproc_image_size: int | None = None  # maximum side of an image before tiling
    pinpoints: tuple[tuple[int, int], ...] = ()  # heights and widths of the tile grids of LLaVA 1.6
    merge_type: str = ""  # `mm_patch_merge_type`
    n_queries: int = 0  # rows per input, independent of the patches; 0 if computed from the patches
    tile_size: int = 0  # side of a tile in pixels; 0 if equal to the overview

    @property
    def family(self) -> VisionFamily:
        """Row of the family."""
        found = find_vision_family(self.projector)
        if found is None:
            raise _unknown(self.projector)
        return found

    def prompt_parts(self, prepared: ProcessedItem, index: int) -> list[str | Placeholder]:
        """Return text and placeholders of an image, without begin and end. `index` is the number of images before."""
        return self.family.parts(prepared, self, index)

    def merged_grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return frames, height and width of the encoder output for an input of this grid."""
        if self.n_queries:
            return 1, 1, self.n_queries
        frames, height, width = grid
        if height % self.merge_size or width % self.merge_size:
            raise ValueError(f"a grid of {height} x {width} patches cannot be merged by {self.merge_size}")
        return -(-frames // self.family.temporal_patch_size), height // self.merge_size, width // self.merge_size


def check_projector(metadata: Mapping[str, Any]) -> None:
    """Raise ModelError if the metadata do not belong to a projector file."""
    if text_of(metadata, "general.architecture") != "clip":
        raise ModelError("not a projector file (see general.architecture); pass an mmproj file")


def read_vision_settings(metadata: Mapping[str, Any]) -> VisionSettings:
    """Read the vision settings from a file's metadata; raise ModelError or UnsupportedError if there are none."""
    check_projector(metadata)
    if metadata.get("clip.has_vision_encoder") is not True:
        raise UnsupportedError("the file has no image encoder (clip.has_vision_encoder)")
    projector = text_of(metadata, "clip.vision.projector_type") or text_of(metadata, "clip.projector_type")
    family = find_vision_family(projector)
    if family is None:
        raise _unknown(projector)
    pinpoints = [int(one) for one in _listed(metadata, "image_grid_pinpoints")]
    settings = VisionSettings(
        kind="image",
        projector=projector,
        image_size=_whole(metadata, "image_size", family.min_image_size),
        patch_size=_whole(metadata, "patch_size", 1),
        mean=_colours(metadata, "image_mean"),
        std=_colours(metadata, "image_std"),
        merge_size=_optional(metadata, family.merge_key, 1) or family.merge_size,
        min_pixels=_optional(metadata, "image_min_pixels"),
        max_pixels=_optional(metadata, "image_max_pixels"),
        min_tiles=_optional(metadata, "preproc_min_tiles", most=_MAX_TILES),
        max_tiles=_optional(metadata, "preproc_max_tiles", most=_MAX_TILES),
        preproc_image_size=_optional(metadata, "preproc_image_size"),
        pinpoints=tuple(zip(pinpoints[::2], pinpoints[1::2], strict=False)),
        merge_type=text_of(metadata, "clip.vision.mm_patch_merge_type"),
    )
    settings = family.read(settings, metadata)
    if any(side < 1 or side % settings.image_size for pair in settings.pinpoints for side in pair):
        raise ModelError(
            f"metadata key clip.vision.image_grid_pinpoints is {pinpoints!r:.60}; expected multiples of the image_size"
            f" {settings.image_size}"
        )
    if min(settings.std) <= 0:
        raise ModelError(f"metadata key clip.vision.image_std is {list(settings.std)}; expected numbers above 0")
    return settings


def _unknown(projector: str) -> UnsupportedError:
    known = ", ".join(vision_families())
    return UnsupportedError(f"projector type {projector!r:.60} is not supported; expected one of {known}")


def _whole(metadata: Mapping[str, Any], name: str, least: int, most: int = _MAX_INT) -> int:
    value = metadata.get(f"clip.vision.{name}")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ModelError(
            f"metadata key clip.vision.{name} is {value!r:.60}; expected an integer from {least} to {most}"
        )
    return value


def _optional(metadata: Mapping[str, Any], name: str, least: int = 0, most: int = _MAX_INT) -> int | None:
    return _whole(metadata, name, least, most) if f"clip.vision.{name}" in metadata else None


def _colours(metadata: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = _listed(metadata, name)
    if len(values) < 3:
        raise ModelError(f"metadata key clip.vision.{name} has {len(values)} numbers; expected 3")
    return tuple(float(one) for one in values[:3])


def _listed(metadata: Mapping[str, Any], name: str) -> list[float]:
    value = metadata.get(f"clip.vision.{name}", ())
    is_array = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))
    values: list[Any] = list(value) if is_array else [None]
    if not all(isinstance(one, (int, float, np.number)) and abs(float(one)) <= _MAX_INT for one in values):
        raise ModelError(f"metadata key clip.vision.{name} is not an array of numbers")
    return [float(one) for one in values]
