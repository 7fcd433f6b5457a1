"""Step3-VL and Step 3.7: 2D rope, layer scale, and two 3 x 3 convolutions of stride 2.

An image is resized to an overview. A large or elongated image also has tiles, which are smaller than the overview.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.errors import ModelError, RequestError
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, position_ids
from woolly.multimodal.encoder.sam import around
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.vit import layer, max_patches
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import Pixels, patchify, resize
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.plan import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer

_TAPS = 4
_MERGE = 4  # two convolutions of stride 2
_MAX_SIDE = 3024  # of an image before tiling, if not in the file
# Values of the processor: sides and aspect ratios.
_MIN_SIDE, _WIDE, _ELONGATED = 32, 1.5, 4.0
_PARTIAL_TILE = 0.2  # larger remainders of a side get a tile of their own
_MAX_PADDED_SIDE = 14142  # 200 million pixels


def stages(hp: TowerParams) -> tuple[StageBuilder, ...]:
    """Build the transformer, the first convolution, and the second convolution with the projector."""
    return (
        StageBuilder(_transformer, ("v.",)),
        StageBuilder(lambda p, hp: p.output(p.output_rows(_filter(p, "mm.0")), "embeddings", "none"), ("mm.0.",)),
        StageBuilder(_rows, ("",), patches=_MERGE),
    )


def _transformer(p: Tracer, hp: TowerParams) -> None:
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.layer_norm(p.embedding_bag(x, "v.position_embd", taps=_TAPS), "v.pre_ln", eps=hp.eps)
    quarter = hp.head_dim // 4
    rope = Rope(hp.head_dim, hp.head_dim, 10000.0, "adjacent", sections=(quarter, quarter), spectrum="each")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act=hp.act or "gelu_quick", rope=rope)
    p.output(p.output_rows(x), "embeddings", "none")


def _filter(p: Tracer, name: str) -> Any:
    return p.linear(p.input(width=p.columns_of(name)), name, width=p.rows(name))


def _rows(p: Tracer, hp: TowerParams) -> None:
    y = p.linear(p.output_rows(_filter(p, "mm.1")), "mm.model.fc", width=p.rows("mm.model.fc"))
    p.output(y, "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape the convolutions to matrices, columns ordered by tap, then channel."""
    out, n_before = dict[str, "Tensor"](), hp.width
    for name in ("mm.0.weight", "mm.1.weight"):
        if name not in hp.tensors or hp.tensors[name].shape[1:] != (n_before, 3, 3):
            raise ModelError(f"tensor {name} is missing, or not a filter of {n_before} x 3 x 3")
        array = hp.tensors[name].dequantize().reshape(hp.tensors[name].shape).transpose(0, 2, 3, 1)
        n_before = len(array)
        out[name] = f32_tensor(name, array.reshape(n_before, -1))
    return out


def patch_layout(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the layouts: patches in raster order, and the inputs of each convolution."""
    side = grid[1]
    if grid != (1, side, side) or side % _MERGE or side > hp.side:
        raise ValueError(f"the encoder reads squares of up to {hp.side} patches per side, not {grid[1]} x {grid[2]}")
    order = np.arange(side**2, dtype=np.int32)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bilinear", _TAPS)
    patches = PatchLayout(
        order,
        order,
        rope_positions=np.ascontiguousarray(position_ids(grid, order)[::-1]),
        gather_rows=gather_rows,
        gather_weights=gather_weights,
    )
    filters = (around(side, 2), around(side // 2, 2))
    return (patches, *(PatchLayout(one, np.arange(len(one), dtype=np.int32)) for one in filters))


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Return the settings with the size of tiles, 504 pixels for an overview of 728."""
    row = _MERGE * settings.patch_size
    return replace(settings, merge_size=_MERGE, tile_size=settings.image_size * 9 // 13 // row * row)


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return the tiles, if any, then the overview."""
    overview = (settings.image_size,) * 2
    window = _window(*(size := _fitted(height, width, settings)), settings)
    if not window:
        return Tiling((overview,))
    lines, columns = (max(1, _snapped(one, window) // window) for one in size)
    return Tiling(((settings.tile_size,) * 2,) * (lines * columns) + (overview,), (lines, columns))


def _is_padded(height: int, width: int) -> bool:
    """True if an image is pasted on a black square."""
    return min(height, width) < _MIN_SIDE and max(height, width) / min(height, width) > _ELONGATED


def _fitted(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Return the sides of an image before tiling."""
    if _is_padded(height, width):
        if max(height, width) > _MAX_PADDED_SIDE:
            raise RequestError(
                f"the image has {width} x {height} pixels, but this model, which pads it to a square,"
                f" takes at most {_MAX_PADDED_SIDE} pixels per side; send a smaller image"
            )
        height = width = max(height, width)
    if max(height, width) > (longest := settings.preproc_image_size or _MAX_SIDE):
        scale = longest / max(height, width)
        height, width = max(1, int(height * scale)), max(1, int(width * scale))
    return height, width


def _window(height: int, width: int, settings: VisionSettings) -> int:
    """Return the side of a tile in pixels of the image; 0: no tiles."""
    longer, shorter = max(height, width), min(height, width)
    if longer <= settings.image_size:
        return shorter if longer / shorter > _WIDE else 0
    return min(shorter, settings.tile_size) if longer / shorter > _ELONGATED else settings.tile_size


def _snapped(length: int, window: int) -> int:
    """Return a side rounded to complete tiles; sides shorter than a tile are padded instead."""
    if length < window:
        return length
    n = length // window
    return window * (n + (length / window - n > _PARTIAL_TILE))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
    lines, columns = choose_tiling(image.height, image.width, settings).tiles
    height, width = _fitted(image.height, image.width, settings)
    pixels = image.pixels
    if _is_padded(image.height, image.width):
        pixels = _padded(pixels, max(pixels.shape), max(pixels.shape))
    pixels = resize(pixels, height, width, "bilinear")
    shown = list[Pixels]()
    if window := _window(height, width, settings):
        large = resize(pixels, _snapped(height, window), _snapped(width, window), "bilinear")
        large = _padded(large, lines * window, columns * window)
        shown = [
            resize(large[y : y + window, x : x + window], settings.tile_size, settings.tile_size, "bilinear")
            for y in range(0, lines * window, window)
            for x in range(0, columns * window, window)
        ]
    shown.append(resize(pixels, settings.image_size, settings.image_size, "bilinear"))
    return ProcessedItem.of(
        "image", [patchify(one, settings) for one in shown], tiles=(lines, columns), size=image.size
    )


def _padded(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return the image with black at the bottom and on the right."""
    if pixels.shape[:2] == (height, width):
        return pixels
    filled = np.zeros((height, width, 3), np.uint8)
    filled[: len(pixels), : pixels.shape[1]] = pixels
    return filled


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return the tiles with a marker between lines, then the overview."""
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for i in range(lines * columns):
        is_last = i + 1 == lines * columns
        end = "<patch_end>" + "<patch_newline>" * ((i + 1) % columns == 0 and not is_last)
        parts += ["<patch_start>", input_rows(prepared, i, settings), end]
    return [*parts, "<im_start>", input_rows(prepared, len(prepared.inputs) - 1, settings), "<im_end>"]


FAMILIES = (
    VisionFamily(
        name="step3vl",
        placeholder_texts=("<im_patch>",),
        parts=parts,
        merge_size=_MERGE,
        read=read,
        choose_tiling=choose_tiling,
        process=process,
        stages=stages,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
    ),
)
