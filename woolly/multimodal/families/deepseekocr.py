"""DeepSeek-OCR: SAM, 4 x 4 downsampling by convolutions, then CLIP; the features of SAM and CLIP are concatenated.

A large image is resized to a grid of tiles, with an overview letterboxed to a gray square. The overview has the trained
size. Tiles are smaller, so position tables are resized when the file is opened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, Int32, PatchLayout
from woolly.multimodal.encoder.sam import EPS, Sam, around, read_sam, resized
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.vit import layer
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.image import Image, check_pillow
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.aspect_grid import find_closest_aspect_ratio
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import Pixels, patchify, resize, split_tiles
from woolly.multimodal.prompt_replacement import Placeholder
from woolly.plan import Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.multimodal.vision_settings import VisionSettings

_CONSTANTS = ("v.image_newline", "v.view_seperator")  # end of a line, end of the image

_CLIP_EPS = 1e-5  # files contain SAM's value
# Inputs of each convolution: squares of the previous output.
_FILTERS = {"v.sam.neck.0": 1, "v.sam.neck.2": 3, "v.sam.net_2": 3, "v.sam.net_3": 3}
_MIN_TILES, _MAX_TILES = 2, 9  # defaults if not in the file
# Files contain the sizes of CLIP, whose patch embedding is not used, instead of the sizes of SAM.
_SAM_SIZES, _CLIP_SIZES = (1024, 16), (224, 14)
_MERGE = 4
_TILE_EIGHTHS = 5  # 640 of 1,024 pixels


def _sam(hp: TowerParams) -> Sam:
    tile, patch = hp.settings.tile_size, hp.settings.patch_size
    if hp.side % 4 or tile % (4 * patch) or not 0 < tile < hp.settings.image_size:
        raise ModelError(
            f"an encoder for images of {hp.settings.image_size} pixels and tiles of {tile} cannot form rows of 4 x 4"
            f" patches of {patch} pixels"
        )
    return read_sam(hp, (tile // patch,))


def tile_side(hp: TowerParams) -> int:
    """Return the patches per side of a tile."""
    return _sam(hp).sides[1]


def stages(hp: TowerParams) -> tuple[StageBuilder, ...]:
    """Build SAM, three 3 x 3 convolutions, and CLIP."""
    return (*sam_stages(), StageBuilder(_rows, ("",), patches=16))


def sam_stages() -> tuple[StageBuilder, ...]:
    """Build SAM and three 3 x 3 convolutions."""
    names = ("blk.", "patch_embd.", "pos_embd.", "ones.", "all.", "window.", "neck.0.", "neck.1.")
    return (
        StageBuilder(_places, tuple(f"v.sam.{name}" for name in names)),
        StageBuilder(_neck, ("v.sam.neck.",)),
        StageBuilder(lambda p, hp: _filter(p, "v.sam.net_2"), ("v.sam.net_2.",), patches=4),
        StageBuilder(lambda p, hp: _filter(p, "v.sam.net_3"), ("v.sam.net_3.",), patches=16),
    )


def _places(p: Tracer, hp: TowerParams) -> None:
    x = _sam(hp).build(p, hp)
    y = p.linear(x, "v.sam.neck.0", width=p.rows("v.sam.neck.0"))
    p.output(p.output_rows(p.layer_norm(y, "v.sam.neck.1", eps=EPS)), "embeddings", "none")


def _neck(p: Tracer, hp: TowerParams) -> None:
    x = p.linear(p.input(width=p.columns_of("v.sam.neck.2")), "v.sam.neck.2", width=p.rows("v.sam.neck.2"))
    p.output(p.output_rows(p.layer_norm(x, "v.sam.neck.3", eps=EPS)), "embeddings", "none")


def _filter(p: Tracer, name: str) -> None:
    p.output(p.output_rows(p.linear(p.input(width=p.columns_of(name)), name, width=p.rows(name))), "embeddings", "none")


def _rows(p: Tracer, hp: TowerParams) -> None:
    """Build CLIP on the output of SAM, and concatenate both."""
    given, clip = p.input(width=hp.width), replace(hp, eps=_CLIP_EPS)
    x = p.embedding_bag(p.embedding_bag(given, "v.class_embd", first=1), "v.position_embd")
    x = p.layer_norm(x, "v.pre_ln", eps=_CLIP_EPS)
    for i in range(hp.n_layers):
        x = layer(p, x, clip, i, act="gelu_quick")
    p.skip("v.patch_embd", "v.post_ln", *_CONSTANTS)  # read by CLIP's patch embedding, or used as prompt rows
    y = p.concat(p.output_rows(x), p.output_rows(given))
    p.output(p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc")), "embeddings", "none")


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of the overview, with window padding."""
    return _sam(hp).padded(hp.side) ** 2


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape SAM's tensors, and resize CLIP's position table to both image sizes."""
    sam, out = _sam(hp), remake_sam(hp, "CLIP")
    n = hp.side // 4
    if "v.position_embd.weight" not in hp.tensors or hp.tensors["v.position_embd.weight"].shape != (n**2 + 1, hp.width):
        raise ModelError(f"tensor v.position_embd.weight is missing, or not a table of 1 + {n} x {n} rows")
    table = hp.tensors["v.position_embd.weight"].dequantize().astype(np.float64)
    square = table[1:].reshape(n, n, hp.width)
    tables = [table[:1], *(resized(square, side // 4).reshape(-1, hp.width) for side in sam.sides)]
    out["v.position_embd.weight"] = f32_tensor("v.position_embd.weight", np.concatenate(tables))
    return out


def remake_sam(hp: TowerParams, reader: str) -> dict[str, Tensor]:
    """Split SAM's tensors, and reshape convolutions to matrices. `reader` is the encoder that reads their output."""
    sam = _sam(hp)
    out = sam.remake(dict(hp.tensors))
    n_before = sam.width
    for one, side in _FILTERS.items():
        name = f"{one}.weight"
        if name not in hp.tensors or hp.tensors[name].shape[1:] != (n_before, side, side):
            raise ModelError(f"tensor {name} is missing, or not a filter of {n_before} x {side} x {side}")
        n_before = hp.tensors[name].shape[0]
        array = hp.tensors[name].dequantize().reshape(hp.tensors[name].shape).transpose(0, 2, 3, 1)
        out[name] = f32_tensor(name, array.reshape(len(array), -1))
    if n_before != hp.width:
        raise ModelError(f"the convolutions output {n_before} columns, but {reader} reads {hp.width}")
    return out


def patch_layout(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the layouts: those of SAM, and CLIP's rows after the class row."""
    layouts, sam, side = sam_layouts(hp, grid), _sam(hp), grid[1]
    n_rows = (side // 4) ** 2
    order = np.arange(-1, n_rows, dtype=np.int32)
    first = 1 + sum((one // 4) ** 2 for one in sam.sides[: sam.sides.index(side)]) if side in sam.sides else 0
    gather_rows = np.stack([np.where(order < 0, 0, order + first), np.where(order < 0, 0, -1)], axis=1).astype(np.int32)
    clip = PatchLayout(
        order,
        np.arange(1, n_rows + 1, dtype=np.int32),
        gather_rows=gather_rows,
        gather_weights=np.ones(gather_rows.shape, np.float32),
    )
    return (*layouts, clip)


def sam_layouts(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the patches grouped by window, and the inputs of the convolutions."""
    sam, side = _sam(hp), grid[1]
    if grid != (1, side, side):
        raise ValueError(f"the encoder reads square images, not {grid[1]} x {grid[2]} patches")
    return sam.patch_layout(side), _all(around(side, 1)), _all(around(side, 2)), _all(around(side // 2, 2))


def _all(order: Int32) -> PatchLayout:
    return PatchLayout(order, np.arange(len(order), dtype=np.int32))


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return an overview, preceded by tiles if the image is larger than a tile."""
    tile, overview = settings.tile_size, (settings.image_size,) * 2
    if max(height, width) <= tile:
        return Tiling((overview,))
    columns, lines = find_closest_aspect_ratio(
        height, width, tile, settings.min_tiles or _MIN_TILES, settings.max_tiles or _MAX_TILES
    )
    return Tiling(((tile, tile),) * (lines * columns) + (overview,), (lines, columns))


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return the image with the tiling of `choose_tiling`."""
    (lines, columns), tile = choose_tiling(image.height, image.width, settings).tiles, settings.tile_size
    tiles = split_tiles(resize(image.pixels, lines * tile, columns * tile, "bicubic"), tile) if lines else []
    shown = [*tiles, _within(image.pixels, settings)]
    inputs = [patchify(one, settings) for one in shown]
    return ProcessedItem.of("image", inputs, tiles=(lines, columns), size=image.size)


def _within(pixels: Pixels, settings: VisionSettings) -> Pixels:
    """Letterbox the image: keep the aspect ratio, center it in a square, pad with the mean color."""
    check_pillow()
    import PIL.Image
    from PIL import ImageOps

    side, colour = settings.image_size, tuple(int(one * 255) for one in settings.mean)
    filled = ImageOps.pad(PIL.Image.fromarray(pixels), (side, side), PIL.Image.Resampling.BICUBIC, color=colour)
    return np.asarray(filled)


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Return the settings of SAM; scale_factor in files belongs to CLIP as well."""
    if (settings.image_size, settings.patch_size) == _CLIP_SIZES:
        settings = replace(settings, image_size=_SAM_SIZES[0], patch_size=_SAM_SIZES[1])
    return read_sizes(settings, _TILE_EIGHTHS)


def read_sizes(settings: VisionSettings, eighths: int) -> VisionSettings:
    """Return the settings with tiles of these eighths of the overview's side, rounded to complete rows."""
    row = _MERGE * settings.patch_size
    return replace(settings, merge_size=_MERGE, tile_size=settings.image_size * eighths // 8 // row * row)


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return lines across all tiles, then lines of the overview, each followed by the file's newline row.

    A separator row ends the image. Both constant rows are stored after the rows of an input.
    """
    lines, columns = prepared.tiles
    last = len(prepared.inputs) - 1
    _, height, width = settings.merged_grid(prepared.inputs[last].grid_thw)
    end = Placeholder(prepared, last, height * width, 1)
    parts: list[str | Placeholder] = []
    for i in range(lines):
        _, high, wide = settings.merged_grid(prepared.inputs[i * columns].grid_thw)
        for y in range(high):
            parts += [Placeholder(prepared, i * columns + x, y * wide, wide) for x in range(columns)]
            parts.append(end)
    for y in range(height):
        parts += [Placeholder(prepared, last, y * width, width), end]
    return [*parts, Placeholder(prepared, last, height * width + 1, 1)]


FAMILIES = (
    VisionFamily(
        name="deepseekocr",
        placeholder_texts=("<image>",),
        parts=parts,
        merge_size=_MERGE,
        read=read,
        choose_tiling=choose_tiling,
        process=process,
        stages=stages,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
        constant_names=_CONSTANTS,
    ),
)
