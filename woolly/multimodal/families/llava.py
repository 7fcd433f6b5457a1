"""LLaVA 1.5 and 1.6, Granite Vision: CLIP or SigLIP layers without the class row, and two matrices.

An image is padded to a square, or resized to one of several sizes and split into tiles. 1.5 pads with the mean color,
as in training (`do_pad` of transformers' processor; without it, CLIP's processor center-crops). 1.6 pads with black;
its overview is resized regardless of the aspect ratio.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.vit import layer, max_patches, mlp, square, with_class
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import Pixels, patchify, resize, split_tiles
from woolly.multimodal.prompt_replacement import Placeholder, all_inputs, input_rows
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

# Layer counts of complete CLIP encoders. Files without `feature_layer` contain either all layers, of which the last is
# unused, or one layer less.
_WHOLE = (12, 24, 32)
_MAX_SIDE = 14_142  # maximum side of the square (600 MB), enough for 100 megapixels at 2:1


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. For several feature layers (Granite Vision), features are concatenated."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(with_class(p, x) if _has_class(hp) else x, "v.position_embd")
    if p.has("v.pre_ln"):
        x = p.layer_norm(x, "v.pre_ln", eps=hp.eps)
    chosen = _chosen(hp)
    p.skip("v.post_ln", *(f"v.blk.{i}" for i in range(max(chosen), hp.n_layers)))
    seen = {0: x}
    for i in range(max(chosen)):
        seen[i + 1] = layer(p, seen[i], hp, i, act=hp.act or "gelu_quick")
    if p.has("mm.3"):
        raise UnsupportedError("LLaVA projectors with norms (Yi-VL) are not supported yet")
    p.skip("v.image_newline")
    y, *others = (p.output_rows(seen[i]) for i in chosen)
    for one in others:
        y = p.concat(y, one)
    p.output(
        mlp(p, y, "mm.0", "mm.2") if p.has("mm.2") else p.linear(y, "mm.0", width=p.rows("mm.0")), "embeddings", "none"
    )


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches, after the class row for CLIP."""
    return square(hp, grid, has_class=_has_class(hp))


def _has_class(hp: TowerParams) -> bool:
    """True if the encoder is CLIP; SigLIP has no class row."""
    return "v.class_embd" in hp.tensors


def _chosen(hp: TowerParams) -> tuple[int, ...]:
    """Return the layers whose outputs are features; 0 is the input of the first layer."""
    if not hp.keys.has("vision.feature_layer"):
        return (hp.n_layers - (hp.n_layers in _WHOLE),)
    chosen = hp.keys.whole_numbers("vision.feature_layer")
    is_known = all(0 <= one <= hp.n_layers for one in chosen) and max(chosen) > 0
    if not is_known or len(set(chosen)) < len(chosen):
        raise ModelError(
            f"metadata key clip.vision.feature_layer is {list(chosen)!r:.60}; expected different numbers from 1 to"
            f" {hp.n_layers}"
        )
    return chosen


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single square, or for 1.6 an overview, then tiles."""
    side = settings.image_size
    if settings.pinpoints:
        high, wide = select_best_resolution(height, width, settings)
        return Tiling.of_grid(high // side, wide // side, side, is_overview_first=True)
    if max(height, width) > _MAX_SIDE and height != width:
        raise RequestError(
            f"the image has {width} x {height} pixels, but this model, which pads it to a square,"
            f" takes at most {_MAX_SIDE} pixels per side; send a smaller image"
        )
    return Tiling(((side, side),))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
    found, side = choose_tiling(image.height, image.width, settings), settings.image_size
    if not settings.pinpoints:
        high = max(image.size)
        filled = _pad_center(image.pixels, high, high, [int(one * 255) for one in settings.mean])
        return ProcessedItem.of("image", [patchify(resize(filled, side, side, "bicubic"), settings)], size=image.size)
    high, wide = found.tiles[0] * side, found.tiles[1] * side
    fitted = resize(image.pixels, *_fit(image.height, image.width, high, wide), "bicubic")
    shown = [
        resize(image.pixels, side, side, "bicubic"),
        *split_tiles(_pad_center(fitted, high, wide, [0, 0, 0]), side),
    ]
    return ProcessedItem.of("image", [patchify(one, settings) for one in shown], tiles=found.tiles, size=image.size)


def select_best_resolution(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Return the tile grid size with the most image pixels; of equal ones, the smallest."""
    best, shown, wasted = (0, 0), 0, math.inf
    for high, wide in settings.pinpoints:
        scale = min(wide / width, high / height)
        own = min(int(width * scale) * int(height * scale), width * height)
        if own > shown or (own == shown and wide * high - own < wasted):
            best, shown, wasted = (high, wide), own, wide * high - own
    return best if any(best) else settings.pinpoints[0]


def _fit(height: int, width: int, high: int, wide: int) -> tuple[int, int]:
    """Return height and width of the image, scaled into a size at the same aspect ratio."""
    if wide / width < high / height:
        return max(1, min(math.ceil(height * (wide / width)), high)), wide
    return high, max(1, min(math.ceil(width * (high / height)), wide))


def _pad_center(pixels: Pixels, high: int, wide: int, colour: list[int]) -> Pixels:
    """Return the pixels centered in a larger image."""
    height, width = pixels.shape[:2]
    if (height, width) == (high, wide):
        return pixels
    out = np.empty((high, wide, 3), np.uint8)
    out[:] = colour
    top, left = (high - height) // 2, (wide - width) // 2
    out[top : top + height, left : left + width] = pixels
    return out


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return the rows of the square, or for 1.6 the overview, then lines across all tiles, without padding.

    Each line ends with the file's newline row, which is stored after the rows of an input.
    """
    if not settings.pinpoints:
        return all_inputs(prepared, settings, index)
    _, side, _ = settings.merged_grid(prepared.inputs[0].grid_thw)
    high, wide = (one * side for one in prepared.tiles)
    height, width = prepared.size
    top = left = 0
    if width / height > wide / high:
        top = (high - int(round(height * (wide / width), 7))) // 2
    else:
        left = (wide - int(round(width * (high / height), 7))) // 2
    parts: list[str | Placeholder] = [input_rows(prepared, 0, settings)]
    for y in range(top, high - top):
        for column in range(prepared.tiles[1]):
            first, last = max(left, column * side), min(wide - left, (column + 1) * side)
            if first < last:
                i = 1 + y // side * prepared.tiles[1] + column
                parts.append(Placeholder(prepared, i, y % side * side + first % side, last - first))
        parts.append(Placeholder(prepared, 0, side * side, 1))
    return parts


FAMILIES = (
    VisionFamily(
        name="mlp",
        placeholder_texts=("<image>",),
        parts=parts,
        choose_tiling=choose_tiling,
        process=process,
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
        constant_names=("v.image_newline",),  # end of each line in LLaVA 1.6
    ),
)
