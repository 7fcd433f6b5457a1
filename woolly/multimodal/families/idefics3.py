"""Idefics 3 and SmolVLM: SigLIP, pixel shuffle and a matrix.

An image is resized to a longest side, then split into tiles, with an overview.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.vit import layer, max_patches, square
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.multimodal.video import VideoSampling
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.video import Video
    from woolly.multimodal.vision_settings import VisionSettings

_MAX_SIDE = 4096  # value of the processor
_TILES = 4  # tiles of the longest side if its length is not in the file
_MAX_FRAMES = 64  # of a video, at one per second
_FRAME_SIDE = 1024  # side of a decoded frame: twice the input size of SmolVLM


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.embedding_bag(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="concat")
    p.output(p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc")), "embeddings", "none")


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return tiles and an overview."""
    size = settings.image_size
    whole = _whole_tiles(*_fit_longest(height, width, _max_side(settings)), size)
    return Tiling.of_grid(whole[0] // size, whole[1] // size, size)


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return tiles, then the overview, or only the overview if one tile is enough."""
    size, longest = settings.image_size, _max_side(settings)
    # Resize in several steps, as in the processor: a single resize has a different result.
    pixels = resize(image.pixels, *_fit_longest(image.height, image.width, longest), "lanczos")
    pixels = resize(pixels, *_whole_tiles(pixels.shape[0], pixels.shape[1], size), "lanczos")
    lines, columns = pixels.shape[0] // size, pixels.shape[1] // size
    if (lines, columns) == (1, 1):
        return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)
    tiles = [*split_tiles(pixels, size), resize(pixels, size, size, "lanczos")]
    inputs = [patchify(tile, settings) for tile in tiles]
    return ProcessedItem.of("image", inputs, tiles=(lines, columns), size=image.size)


def _max_side(settings: VisionSettings) -> int:
    """Return the longest side before tiling."""
    return settings.preproc_image_size or _TILES * settings.image_size


def _fit_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the sides with the longer one at `longest` and the other even, within the processor's limit."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > _MAX_SIDE:
        height, width = int(_MAX_SIDE / ratio), _MAX_SIDE
    elif height > width and height > _MAX_SIDE:
        height, width = _MAX_SIDE, int(_MAX_SIDE * ratio)
    return max(height, 1), max(width, 1)


def _whole_tiles(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the sides rounded up to complete tiles, starting with the longer side."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / size) * size
        height = math.ceil(int(width / ratio) / size) * size
    else:
        height = math.ceil(height / size) * size
        width = math.ceil(int(height * ratio) / size) * size
    return max(height, size), max(width, size)


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return tiles with row and column marks, then the overview; an untiled image is only an overview."""
    fence, overview = "<fake_token_around_image>", "<global-img>"
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for y in range(lines):
        for x in range(columns):
            parts += [f"{fence}<row_{y + 1}_col_{x + 1}>", input_rows(prepared, y * columns + x, settings)]
        parts.append("\n")
    last = input_rows(prepared, len(prepared.inputs) - 1, settings)
    return [*parts, "\n" * bool(lines), f"{fence}{overview}", last, fence]


def _choose_frames(n_frames: int, rate: float) -> list[int]:
    """Sample one frame per second, evenly from the first to the last.

    The first and the last second of a long video are omitted.
    """
    seconds = n_frames / rate
    n = max(1, min(round(seconds), _MAX_FRAMES))
    first, last = 0, n_frames - 1
    if seconds - 2 > _MAX_FRAMES:
        first, last = int(rate), min(int(n_frames - rate), last)
    if first >= last:
        first, last = 0, n_frames - 1
    step = (last - first) / max(n - 1, 1)
    return sorted({int(first + i * step) for i in range(n - 1)} | {last if n > 1 else first})


def _fit_frame(n: int, height: int, width: int) -> tuple[int, int]:
    scale = min(1.0, _FRAME_SIDE / max(width, height))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _frame_texts(seen: Video) -> list[str]:
    """Return the text before each frame."""
    minutes, seconds = divmod(int(seen.seconds), 60)
    length = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    number = _words(len(seen.frames))
    intro = f"You are provided the following series of {number} frames from a {length} [H:MM:SS] video.\n"
    times = (divmod(int(frame.seconds), 60) for frame in seen.frames)
    texts = [f"\nFrame from {minute:02}:{second:02}:" for minute, second in times]
    return [intro + texts[0], *texts[1:]]


_ONES = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def _words(n: int) -> str:
    """Return a number from 1 to 99 in words."""
    if n < 20:
        return _ONES[n] if n < 10 else _TEENS[n - 10]
    tens = _TENS[n // 10 - 2]
    return f"{tens}-{_ONES[n % 10]}" if n % 10 else tens


SMOLVLM = VideoSampling("smolvlm", _choose_frames, _fit_frame, texts=_frame_texts, end="\n\n")


FAMILIES = (
    VisionFamily(
        name="idefics3",
        placeholder_texts=("<image>",),
        parts=parts,
        merge_size=2,
        choose_tiling=choose_tiling,
        process=process,
        video=lambda settings: SMOLVLM,
        build=build,
        patch_layout=square,
        max_patches=max_patches,
    ),
)
