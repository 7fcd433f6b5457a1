"""Gemma 4: any image size, position tables for columns and rows, norms before and after blocks, 3 x 3 pooling.

An image keeps its aspect ratio within a maximum of rows. The encoder maps pixels from 0..1 to -1..1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.clipped import clipped
from woolly.multimodal.encoder.derived_tensors import f32_tensor, select_rows
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, Int32, PatchLayout, merge_order, position_ids
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.tiling import Tiling
from woolly.plan import Rope, Tracer

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

_TABLE = "v.position_embd.weight"
_MAX_ROWS = 280  # value of the processor; not in files


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. It maps pixels from 0..1 to -1..1; attention scores are not scaled."""
    quarter = hp.head_dim // 4
    rope = Rope(hp.head_dim, hp.head_dim, 100.0, "neox", sections=(quarter, quarter), spectrum="each")
    x = p.linear(p.input(width=hp.patch) * 2.0 + p.vector("made.minus_one"), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd", taps=2)
    for i in range(hp.n_layers):
        with p.scope(f"v.blk.{i}"):
            h = p.rms_norm(x, "ln1", eps=hp.eps)
            q, k, v = (clipped(p, h, f"v.blk.{i}.attn_{one}", hp.tensors) for one in "qkv")
            q, k = (p.rope(p.rms_norm(one, f"attn_{n}_norm", eps=hp.eps), rope) for one, n in ((q, "q"), (k, "k")))
            v = p.rms_norm(v, eps=hp.eps, group=hp.head_dim)
            a = clipped(
                p, p.attention(q, k, v, head_dim=hp.head_dim, scale=1.0, mask="all"), f"v.blk.{i}.attn_out", hp.tensors
            )
            x = x + p.rms_norm(a, "attn_post_norm", eps=hp.eps)
            h = p.rms_norm(x, "ln2", eps=hp.eps)
            gate, up = (clipped(p, h, f"v.blk.{i}.ffn_{one}", hp.tensors) for one in ("gate", "up"))
            y = clipped(p, p.unary(gate, "gelu") * up, f"v.blk.{i}.ffn_down", hp.tensors)
            x = x + p.rms_norm(y, "ffn_post_norm", eps=hp.eps)
            x = p.mul_weight(x, "out_scale") if p.has("out_scale") else x
    y = p.merge_patches(x, rows=hp.merge**2, kind="mean") * hp.width**0.5
    if p.has("v.std_scale"):
        y = (y + p.vector("made.std_bias")) * p.vector("v.std_scale")
    p.skip("v.std_bias")
    y = p.rms_norm(y, eps=hp.eps)
    p.output(p.linear(y, "mm.input_projection", width=p.rows("mm.input_projection")), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Join both position tables, and reorder head columns so that the column's rope pairs come first in each half."""
    table = hp.tensors[_TABLE]
    out = {_TABLE: replace(table, shape=(table.n_elements // hp.width, hp.width))}
    out["made.minus_one"] = f32_tensor("made.minus_one", np.full(hp.patch, -1.0))
    if "v.std_bias" in hp.tensors:
        out["made.std_bias"] = f32_tensor("made.std_bias", -hp.tensors["v.std_bias"].dequantize())
    head = np.arange(hp.head_dim).reshape(2, 2, -1).swapaxes(0, 1).reshape(-1)
    rows = (np.arange(hp.heads)[:, None] * hp.head_dim + head).reshape(-1)
    for i in range(hp.n_layers):
        for one in "qk":
            for name, order in ((f"attn_{one}.weight", rows), (f"attn_{one}_norm.weight", head)):
                full = f"v.blk.{i}.{name}"
                if full in hp.tensors:
                    out[full] = select_rows(hp.tensors[full], order)
    return out


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in the order of pooling blocks."""
    order = merge_order(grid, hp.merge)
    lines, columns = position_ids(grid, order)
    gather_rows = position_rows(hp, grid, order)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    gather_weights = np.ones(gather_rows.shape, np.float32)
    return PatchLayout(
        order,
        outputs,
        rope_positions=np.stack([columns, lines]),
        gather_rows=gather_rows,
        gather_weights=gather_weights,
    )


def position_rows(hp: TowerParams, grid: Grid, order: Int32) -> Int32:
    """Return the indices of each patch in the tables of columns and lines; raise ValueError for larger grids."""
    lines, columns = position_ids(grid, order)
    n_places = hp.tensors[_TABLE].n_elements // hp.width // 2
    if max(grid[1:]) > n_places:
        raise ValueError(
            f"the image has {grid[1]} x {grid[2]} patches; the encoder supports at most {n_places} x {n_places}"
        )
    return np.stack([columns, n_places + lines], axis=1).astype(np.int32)


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches for the processor's maximum number of rows."""
    return (hp.settings.max_pixels or _MAX_ROWS * (hp.merge * hp.settings.patch_size) ** 2) // hp.settings.patch_size**2


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input with as many rows as the aspect ratio allows."""
    side = settings.patch_size * settings.merge_size
    most = settings.max_pixels or _MAX_ROWS * side**2
    grow = math.sqrt(most / (height * width))
    high, wide = int(grow * height // side), int(grow * width // side)
    if high == wide == 0:
        raise RequestError(f"the image has {width} x {height} pixels, which is too small; send a larger image")
    longest = most // side**2
    if high == 0:
        high, wide = 1, min(width // height, longest)
    elif wide == 0:
        high, wide = min(height // width, longest), 1
    return Tiling(((high * side, wide * side),))


FAMILIES = (
    VisionFamily(
        name="gemma4v",
        begin="<|image>",
        end="<image|>",
        placeholder_texts=("<|image|>",),
        is_bidirectional=True,
        merge_size=3,
        choose_tiling=choose_tiling,
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
    ),
)
