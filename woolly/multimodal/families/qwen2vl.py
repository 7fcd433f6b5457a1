"""Qwen 2 VL, 2.5 VL and 2.5 Omni: any image size, 2D rope, 2 x 2 patches per row.

Qwen 2.5 VL has RMS norms and SwiGLU. Every n-th layer has full attention, the others window attention.
"""

from __future__ import annotations

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, Int32, PatchLayout, merge_order, position_ids
from woolly.multimodal.encoder.vit import Norm, layer, mlp, normed
from woolly.plan import Handle, Rope, Tracer
from woolly.plan.ops.attention import Mask

PROJECTORS = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o")

_WINDOW = 112  # pixels per side


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    norm: Norm = "rms" if _is_windowed(hp) else "layer"
    x, rope = patches(p, hp), vision_rope(hp)
    period = hp.keys.positive("vision.n_wa_pattern") if _is_windowed(hp) else 1
    for i in range(hp.n_layers):
        mask: Mask = "all" if (i + 1) % period == 0 else "block"
        x = layer(p, x, hp, i, act=hp.act or "gelu_quick", norm=norm, rope=rope, mask=mask)
    y = p.merge_patches(normed(p, x, "v.post_ln", hp, norm), rows=hp.merge**2, kind="concat")
    p.output(mlp(p, y, "mm.0", "mm.2"), "embeddings", "none")


def patches(p: Tracer, hp: TowerParams) -> Handle:
    """Build the patch embedding of two frames; a still image is both frames."""
    given = p.input(width=hp.patch * hp.settings.family.temporal_patch_size)
    first, second = (
        p.split(given, hp.patch, hp.patch) if hp.settings.family.temporal_patch_size == 2 else (given, given)
    )
    return p.linear(first, "v.patch_embd", width=hp.width) + p.linear(second, "v.patch_embd.weight.1", width=hp.width)


def vision_rope(hp: TowerParams) -> Rope:
    """Return 2D rope: half of the pairs rotate by the line, half by the column, with the same frequencies."""
    quarter = hp.head_dim // 4
    return Rope(hp.head_dim, hp.head_dim, 10000.0, "neox", sections=(quarter, quarter), spectrum="each")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, grouped by attention window."""
    n_rows = hp.merge**2
    blocks = merge_order((1, *grid[1:]), hp.merge).reshape(-1, n_rows)
    if not _is_windowed(hp):
        order = blocks.reshape(-1)
        outputs = np.arange(0, len(order), n_rows, dtype=np.int32)
        return PatchLayout(both_frames(hp, grid, order), outputs, rope_positions=position_ids(grid, order))
    height, width = grid[1] // hp.merge, grid[2] // hp.merge
    side = hp.keys.positive("vision.window_size", _WINDOW) // hp.merge // hp.settings.patch_size
    line, column = np.divmod(np.arange(height * width), width)
    windows = line // side * (-(-width // side)) + column // side
    by_window = np.argsort(windows, kind="stable")
    order = blocks[by_window].reshape(-1)
    own = np.repeat(windows[by_window], n_rows)
    firsts, ends = (np.searchsorted(own, own, side=which) for which in ("left", "right"))
    return PatchLayout(
        both_frames(hp, grid, order),
        np.arange(0, len(order), n_rows, dtype=np.int32),
        results=np.argsort(by_window, kind="stable").astype(np.int32),
        rope_positions=position_ids(grid, order),
        attn_ranges=np.stack([firsts, ends], axis=1).astype(np.int32),
    )


def both_frames(hp: TowerParams, grid: Grid, order: Int32) -> Int32:
    """Return the patches of both frames, [n_rows, frames of a patch]; a still image is both frames."""
    frames, height, width = grid
    depth = hp.settings.family.temporal_patch_size
    if frames > depth:
        raise ValueError(f"the input has {frames} frames, but a patch has {depth}")
    if depth == 1:
        return order
    return np.stack([order, order + (frames - 1) * height * width], axis=1)


def _is_windowed(hp: TowerParams) -> bool:
    return hp.settings.projector in ("qwen2.5vl_merger", "qwen2.5o")
