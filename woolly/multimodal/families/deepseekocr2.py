"""DeepSeek-OCR 2: SAM and convolutions as in DeepSeek-OCR, then Qwen 2 with learned queries, which are the rows.

Tiles and the overview have queries of their own, and no ends of lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.errors import ModelError
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.families.deepseekocr import FAMILIES as _DEEPSEEKOCR
from woolly.multimodal.families.deepseekocr import read_sizes, remake_sam, sam_layouts, sam_stages, tile_side
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.plan import Handle, Rope, Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.vision_settings import VisionSettings

_QUERIES = ("v.resample_query_1024", "v.resample_query_768")  # of the overview and of a tile
_TABLE = "v.resample_queries.weight"
_MAX_TILES = 6  # if not in the file
_TILE_EIGHTHS = 6  # 768 of 1,024 pixels
_ROPE_BASE = 1e6


def stages(hp: TowerParams) -> tuple[StageBuilder, ...]:
    """Build SAM with its convolutions, then Qwen 2 over its rows and as many queries."""
    return (*sam_stages(), StageBuilder(_rows, ("",), patches=8))


def _rows(p: Tracer, hp: TowerParams) -> None:
    x = p.embedding_bag(p.input(width=hp.width), "v.resample_queries")
    p.skip("v.patch_embd", "v.image_newline", "v.view_seperator", *_QUERIES)  # in one table, or prompt rows
    kv_width = hp.keys.positive("vision.attention.head_count_kv") * hp.head_dim
    for i in range(hp.n_layers):
        with p.scope(f"v.blk.{i}"):
            x = _layer(p, x, hp, kv_width)
    y = p.output_rows(p.rms_norm(x, "v.post_ln", eps=hp.eps))
    p.output(p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc")), "embeddings", "none")


def _layer(p: Tracer, x: Handle, hp: TowerParams, kv_width: int) -> Handle:
    rope = Rope(hp.head_dim, hp.head_dim, _ROPE_BASE, "neox")
    h = p.rms_norm(x, "ln1", eps=hp.eps)
    q, k = p.linear(h, "attn_q", width=hp.width), p.linear(h, "attn_k", width=kv_width)
    v = p.linear(h, "attn_v", width=kv_width)
    a = p.attention(p.rope(q, rope), p.rope(k, rope), v, head_dim=hp.head_dim, scale=hp.head_dim**-0.5, mask="block")
    x = x + p.linear(a, "attn_out", width=hp.width)
    h = p.rms_norm(x, "ln2", eps=hp.eps)
    gate, up = (p.linear(h, name, width=p.rows(name)) for name in ("ffn_gate", "ffn_up"))
    return x + p.linear(p.glu(gate, up, "silu"), "ffn_down", width=hp.width)


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape SAM's tensors, and join the queries of the overview and of a tile."""
    tables = []
    for name, side in zip(_QUERIES, (hp.side, tile_side(hp)), strict=True):
        n, tensor = (side // 4) ** 2, hp.tensors.get(f"{name}.weight")
        if tensor is None or tensor.shape != (n, hp.width):
            raise ModelError(f"tensor {name}.weight is missing, or not {n} rows of {hp.width} numbers")
        tables.append(tensor.dequantize().reshape(n, hp.width))
    return remake_sam(hp, "Qwen 2") | {_TABLE: f32_tensor(_TABLE, np.concatenate(tables))}


def patch_layout(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return SAM's layouts, then its rows and the queries. A query attends to the rows and to the queries before."""
    layouts, n = sam_layouts(hp, grid), (grid[1] // 4) ** 2
    order = np.append(np.arange(n, dtype=np.int32), np.full(n, -1, np.int32))
    first = 0 if grid[1] == hp.side else (hp.side // 4) ** 2
    number = np.arange(2 * n)
    gather_rows = np.where(number < n, -1, first + number - n).astype(np.int32)[:, None]
    queries = PatchLayout(
        order,
        np.arange(n, 2 * n, dtype=np.int32),
        attn_ranges=np.stack([np.zeros(2 * n), np.maximum(n, number + 1)], axis=1).astype(np.int32),
        gather_rows=gather_rows,
        gather_weights=np.ones(gather_rows.shape, np.float32),
    )
    return (*layouts, queries)


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Return the settings with the size and the number of tiles."""
    return replace(read_sizes(settings, _TILE_EIGHTHS), max_tiles=settings.max_tiles or _MAX_TILES)


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return the tiles, then the overview and the separator row, which is stored after the rows of an input."""
    *tiles, overview = (input_rows(prepared, i, settings) for i in range(len(prepared.inputs)))
    return [*tiles, replace(overview, n=overview.n + 1)]


FAMILIES = (
    replace(
        _DEEPSEEKOCR[0],
        name="deepseekocr2",
        parts=parts,
        read=read,
        stages=stages,
        patch_layout=patch_layout,
        remake=remake,
        constant_names=("v.view_seperator",),
    ),
)
