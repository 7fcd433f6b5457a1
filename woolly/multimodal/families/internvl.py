"""InternVL: InternViT with layer scale, pixel shuffle, a norm and an MLP of two matrices.

An image is resized to the grid of tiles with the closest aspect ratio, with an overview.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.vit import layer, max_patches, mlp, square, with_class
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processed_item import ProcessedItem
from woolly.multimodal.processing.aspect_grid import find_closest_aspect_ratio
from woolly.multimodal.processing.tiling import Tiling
from woolly.multimodal.processing.transforms import patchify, resize, split_tiles
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.image import Image
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_TILES, _MAX_TILES = 1, 12  # defaults if not in the file


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. GELU is the exact form."""
    x = with_class(p, p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width))
    x = p.embedding_bag(x, "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="silu" if hp.act == "silu" else "gelu_erf", norm="rms" if _is_rms(p) else "layer")
    y = p.layer_norm(p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.model.mlp.0", eps=1e-5)
    p.output(mlp(p, y, "mm.model.mlp.1", "mm.model.mlp.3"), "embeddings", "none")


def _is_rms(p: Tracer) -> bool:
    """True if norms are RMS norms (weights without bias), as in the largest encoder."""
    return not p.has("v.blk.0.ln1.bias")


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return tiles and an overview."""
    least, most = settings.min_tiles or _MIN_TILES, settings.max_tiles or _MAX_TILES
    columns, lines = find_closest_aspect_ratio(height, width, settings.image_size, least, most)
    return Tiling.of_grid(lines, columns, settings.image_size)


def process(image: Image, settings: VisionSettings) -> ProcessedItem:
    """Return tiles, then the overview, or only the overview if one tile is enough."""
    size = settings.image_size
    tiles = choose_tiling(image.height, image.width, settings).tiles
    lines, columns = tiles if any(tiles) else (1, 1)
    pixels = resize(image.pixels, lines * size, columns * size, "bicubic")
    if not any(tiles):
        return ProcessedItem.of("image", [patchify(pixels, settings)], size=image.size)
    shown = [*split_tiles(pixels, size), resize(image.pixels, size, size, "bicubic")]
    return ProcessedItem.of("image", [patchify(one, settings) for one in shown], tiles=tiles, size=image.size)


FAMILIES = (
    VisionFamily(
        name="internvl",
        begin="<img>",
        end="</img>",
        placeholder_texts=("<IMG_CONTEXT>", "<image>"),
        merge_size=2,
        choose_tiling=choose_tiling,
        process=process,
        build=build,
        patch_layout=partial(square, has_class=True),
        max_patches=max_patches,
    ),
)
