"""Vision settings of a projector (mmproj) file, read from its `clip.*` keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import text_of

if TYPE_CHECKING:
    from woolly.multimodal.processed_item import Modality

# Maximum patches of an input, even if the file allows more: 16,384 patches of 14 x 14 are 1,792 x 1,792 pixels.
MAX_PATCHES = 16384

_MAX_INT = (1 << 31) - 1  # maximum of any integer: pixels, tiles, rows


@dataclass(frozen=True)
class VisionProjector:
    """Family of vision encoders: text around the rows, and their layout in the prompt."""

    begin: str = ""  # text before the rows of an image, as in the model's processor
    end: str = ""
    # Placeholders in chat templates, longest first, which include the begin and end text.
    placeholder_texts: tuple[str, ...] = ()
    merge_size: int = 1  # patches per side of a row, if not in the file
    merge_key: str = "projector.scale_factor"
    line_end: str = ""  # text between lines of rows
    is_bidirectional: bool = False  # bidirectional attention within an image
    has_mrope: bool = False  # M-RoPE positions
    temporal_patch_size: int = 1  # frames per patch of a video


_QWEN = VisionProjector(
    "<|vision_start|>",
    "<|vision_end|>",
    ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    merge_size=2,
    merge_key="spatial_merge_size",
    has_mrope=True,
)

# Keyed by `clip.projector_type`: families with a supported layout. `woolly/multimodal/families/` has the encoders.
VISION_PROJECTORS: Mapping[str, VisionProjector] = {
    "gemma3": VisionProjector(
        "\n\n<start_of_image>", "<end_of_image>\n\n", ("<start_of_image>",), merge_size=4, is_bidirectional=True
    ),
    # The end row of an image is in the file.
    "gemma3nv": VisionProjector("\n\n<start_of_image>", "\n\n", ("<image_soft_token>",)),
    "gemma4v": VisionProjector("<|image>", "<image|>", ("<|image|>",), merge_size=3, is_bidirectional=True),
    "mlp": VisionProjector(placeholder_texts=("<image>",)),
    # The rows before and after an image are in the file.
    "cogvlm": VisionProjector(placeholder_texts=("<image>",)),
    "qwen2vl_merger": replace(_QWEN, temporal_patch_size=2),
    "qwen2.5vl_merger": replace(_QWEN, temporal_patch_size=2),
    "qwen2.5o": replace(
        _QWEN,
        begin="<|vision_bos|>",
        end="<|vision_eos|>",
        placeholder_texts=("<|vision_bos|><|IMAGE|><|vision_eos|>", "<|IMAGE|>"),
    ),
    "qwen3vl_merger": replace(_QWEN, temporal_patch_size=2),
    "idefics3": VisionProjector(placeholder_texts=("<image>",), merge_size=2),
    "pixtral": VisionProjector("", "[IMG_END]", ("[IMG]",), merge_key="spatial_merge_size", line_end="[IMG_BREAK]"),
    "lightonocr": VisionProjector(placeholder_texts=("<|image_pad|>",), merge_key="spatial_merge_size"),
    "lfm2": VisionProjector("<|image_start|>", "<|image_end|>", ("<image>",), merge_size=2),
    "llama4": VisionProjector("<|image_start|>", "<|image_end|>", ("<|image|>",), merge_size=2),
    "glm4v": VisionProjector(
        "<|begin_of_image|>",
        "<|end_of_image|>",
        ("<|begin_of_image|><|image|><|end_of_image|>", "<|image|>"),
        merge_size=2,
        merge_key="spatial_merge_size",
        has_mrope=True,
    ),
    "paddleocr": VisionProjector(
        "<|IMAGE_START|>",
        "<|IMAGE_END|>",
        ("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>"),
        merge_size=2,
        merge_key="spatial_merge_size",
        has_mrope=True,
    ),
    "resampler": VisionProjector(placeholder_texts=("(<image>./</image>)",)),
    "minicpmv4_6": VisionProjector(placeholder_texts=("(<image>./</image>)", "<|image_pad|>"), merge_size=4),
    "dots_ocr": VisionProjector(
        "<|img|>", "<|endofimg|>", ("<|img|><|imgpad|><|endofimg|>", "<|imgpad|>"), merge_size=2
    ),
    "kimivl": VisionProjector(
        "<|media_start|>image<|media_content|>",
        "<|media_end|>",
        ("<|media_start|>image<|media_content|><|media_pad|><|media_end|>", "<|media_pad|>"),
        merge_size=2,
    ),
    "internvl": VisionProjector("<img>", "</img>", ("<IMG_CONTEXT>", "<image>"), merge_size=2),
    "hunyuanvl": VisionProjector(
        "<｜hy_place▁holder▁no▁100｜>",
        "<｜hy_place▁holder▁no▁101｜>",
        (
            "<｜hy_place▁holder▁no▁100｜><｜hy_place▁holder▁no▁102｜><｜hy_place▁holder▁no▁101｜>",
            "<｜hy_place▁holder▁no▁102｜>",
        ),
        merge_size=2,
        merge_key="spatial_merge_size",
    ),
    # The newline rows and the end row of the image are in the file.
    "deepseekocr": VisionProjector(placeholder_texts=("<image>",), merge_size=4),
}


_GEMMA3N_SIDE = 16  # rows per side of an image; patch_size in files is wrong
# Files of DeepSeek-OCR contain the sizes of CLIP, whose patch embedding is not used, instead of the sizes of SAM.
_SAM_SIZES, _CLIP_SIZES = (1024, 16), (224, 14)
_ANY_SIZE = ("dots_ocr",)  # files have size 0: no trained size


@dataclass(frozen=True)
class VisionSettings:
    """Image parameters of a vision encoder. Values missing in the file are None, and the family's defaults apply."""

    kind: Modality
    projector: str  # `clip.projector_type`, a key of VISION_PROJECTORS
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
    def family(self) -> VisionProjector:
        """Entry of VISION_PROJECTORS."""
        return VISION_PROJECTORS[self.projector]

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
    if projector not in VISION_PROJECTORS:
        raise UnsupportedError(
            f"projector type {projector!r:.60} is not supported; expected one of {', '.join(sorted(VISION_PROJECTORS))}"
        )
    family = VISION_PROJECTORS[projector]
    pinpoints = [int(one) for one in _listed(metadata, "image_grid_pinpoints")]
    settings = VisionSettings(
        kind="image",
        projector=projector,
        image_size=_whole(metadata, "image_size", 0 if projector in _ANY_SIZE else 1),
        patch_size=_whole(metadata, "patch_size", 1),
        mean=_colours(metadata, "image_mean"),
        std=_colours(metadata, "image_std"),
        merge_size=_optional(metadata, family.merge_key, 1) or family.merge_size,
        min_pixels=_optional(metadata, "image_min_pixels"),
        max_pixels=_optional(metadata, "image_max_pixels"),
        min_tiles=_optional(metadata, "preproc_min_tiles"),
        max_tiles=_optional(metadata, "preproc_max_tiles"),
        preproc_image_size=_optional(metadata, "preproc_image_size"),
        pinpoints=tuple(zip(pinpoints[::2], pinpoints[1::2], strict=False)),
        merge_type=text_of(metadata, "clip.vision.mm_patch_merge_type"),
        n_queries=_queries(metadata) if projector == "resampler" else 0,
    )
    if projector == "gemma3nv":
        settings = replace(settings, patch_size=max(1, settings.image_size // _GEMMA3N_SIDE))
    if projector == "deepseekocr":
        if (settings.image_size, settings.patch_size) == _CLIP_SIZES:
            settings = replace(settings, image_size=_SAM_SIZES[0], patch_size=_SAM_SIZES[1])
        # scale_factor in files belongs to CLIP as well. Tiles are 640 pixels, the overview 1,024, rounded to complete
        # rows.
        row = family.merge_size * settings.patch_size
        settings = replace(settings, merge_size=family.merge_size, tile_size=settings.image_size * 5 // 8 // row * row)
    if any(side < 1 or side % settings.image_size for pair in settings.pinpoints for side in pair):
        raise ModelError(
            f"metadata key clip.vision.image_grid_pinpoints is {pinpoints!r:.60}; expected multiples of the image_size"
            f" {settings.image_size}"
        )
    if min(settings.std) <= 0:
        raise ModelError(f"metadata key clip.vision.image_std is {list(settings.std)}; expected numbers above 0")
    return settings


def _queries(metadata: Mapping[str, Any]) -> int:
    """Return the rows per input of MiniCPM-V; raise UnsupportedError for versions with another layout."""
    version = metadata.get("clip.minicpmv_version", 2)
    if not isinstance(version, int) or version < 3:
        raise UnsupportedError(f"clip.minicpmv_version is {version!r:.60}; expected 3 (MiniCPM-V 2.6) or later")
    number = metadata.get("clip.minicpmv_query_num", 0)
    if not isinstance(number, int) or not 0 <= number <= MAX_PATCHES:
        raise ModelError(f"metadata key clip.minicpmv_query_num is {number!r:.60}; expected a number of rows")
    return number or 64


def _whole(metadata: Mapping[str, Any], name: str, least: int) -> int:
    value = metadata.get(f"clip.vision.{name}")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_INT:
        raise ModelError(
            f"metadata key clip.vision.{name} is {value!r:.60}; expected an integer from {least} to {_MAX_INT}"
        )
    return value


def _optional(metadata: Mapping[str, Any], name: str, least: int = 0) -> int | None:
    return _whole(metadata, name, least) if f"clip.vision.{name}" in metadata else None


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
