"""MiniMax M3: CLIP layers with a rope by time, line and column; an MLP per patch, then one per 2 x 2 patches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.derived_tensors import select_rows
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.families.qwen2vl import QWEN2, patch_layout, patches
from woolly.multimodal.processing.smart_resize import limit_rows, smart_tiling
from woolly.plan import Rope

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.processing.tiling import Tiling
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer

_MAX_ROWS = 576  # value of the processor, if the file has no pixel limit


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. Only lines and columns rotate, because the time of a still image is 0."""
    x = p.layer_norm(patches(p, hp), "v.pre_ln", eps=hp.eps)
    half = _axis(hp) // 2
    rope = Rope(hp.head_dim, 4 * half, 10000.0, "neox", sections=(half, half), spectrum="each")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf", rope=rope)
    y = p.merge_patches(mlp(p, x, "mm.1", "mm.2"), rows=hp.merge**2, kind="concat")
    p.output(mlp(p, y, "mm.merger.fc1", "mm.merger.fc2"), "embeddings", "none")


def _axis(hp: TowerParams) -> int:
    """Return the elements of a head that rotate by each of time, line and column."""
    return 2 * (2 * (hp.head_dim // 2) // 3 // 2)


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reorder head columns from time, line, column and the rest, to halves of line and column, then the others."""
    n, half = _axis(hp), _axis(hp) // 2
    line, column = np.arange(n, 2 * n), np.arange(2 * n, 3 * n)
    head = np.concatenate(
        [line[:half], column[:half], line[half:], column[half:], np.arange(n), np.arange(3 * n, hp.head_dim)]
    )
    rows = (np.arange(hp.heads)[:, None] * hp.head_dim + head).reshape(-1)
    own = {"attn_q": rows, "attn_k": rows}
    own["attn_qkv"] = np.concatenate([rows, hp.width + rows, np.arange(2 * hp.width, 3 * hp.width)])
    named = {
        f"v.blk.{i}.{name}.{part}": order
        for i in range(hp.n_layers)
        for name, order in own.items()
        for part in ("weight", "bias")
    }
    return {name: select_rows(hp.tensors[name], order) for name, order in named.items() if name in hp.tensors}


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input, of at least one row per side before the limits."""
    return smart_tiling(height, width, settings, min_side_rows=1)


FAMILIES = (
    replace(
        QWEN2,
        name="minimax_m3",
        begin="]<]start of image[>[",
        end="]<]end of image[>[",
        placeholder_texts=("]<]image[>[",),
        has_mrope=False,
        video=None,
        read=partial(limit_rows, most=_MAX_ROWS),
        choose_tiling=choose_tiling,
        build=build,
        patch_layout=patch_layout,
        remake=remake,
    ),
)
