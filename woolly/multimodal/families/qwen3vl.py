"""Qwen 3 VL: Qwen 2 VL with an interpolated position table, and DeepStack features for decoder layers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, bilinear_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, mlp, vision_rope
from woolly.multimodal.families.qwen2vl import (
    MAX_FRAME_ROWS,
    QWEN2,
    both_frames,
    check_ratio,
    choose_frame_count,
    patches,
)
from woolly.multimodal.processing.smart_resize import max_pixels, smart_tiling
from woolly.multimodal.video import VideoSampling
from woolly.plan import Handle, Tracer

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

_MIN_ROWS = 64  # of an image
# Limits for the pixels of all frames of a video, from the checkpoints' configurations.
_MIN_PIXELS, _MAX_PIXELS = 4096, 25_165_824


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. DeepStack features are concatenated to the rows of the last layer, in order."""
    x, rope = p.embedding_bag(patches(p, hp), "v.position_embd", taps=4), vision_rope(hp)
    deep: list[Handle] = []
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act=hp.act or "gelu", rope=rope)
        if p.has(f"v.deepstack.{i}.fc1"):
            with p.scope(f"v.deepstack.{i}"):
                y = p.layer_norm(p.merge_patches(x, rows=hp.merge**2, kind="concat"), "norm", eps=hp.eps)
                deep.append(mlp(p, y, "fc1", "fc2"))
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="concat")
    y = mlp(p, y, "mm.0", "mm.2")
    for one in deep:
        y = p.concat(y, one)
    p.output(y, "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, with both frames concatenated."""
    order = merge_order((1, *grid[1:]), hp.merge)
    gather_rows, gather_weights = bilinear_pos_embed(grid, order, hp.side)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    both = both_frames(hp, grid, order)
    return PatchLayout(
        both, outputs, rope_positions=position_ids(grid, order), gather_rows=gather_rows, gather_weights=gather_weights
    )


def _video(settings: VisionSettings) -> VideoSampling:
    side, most = settings.patch_size * settings.merge_size, max_pixels(settings)
    fit = partial(_fit_frame, side, most)
    return VideoSampling(f"qwen3vl {side} {most}", _choose_frames, fit, temporal_patch_size=2, uses_pillow=True)


def _choose_frames(n_frames: int, rate: float) -> list[int]:
    """Sample two frames per second, evenly from the first to the last."""
    n = int(choose_frame_count(n_frames, rate))
    return [int(one) for one in np.linspace(0, n_frames - 1, n).round()]


def _fit_frame(side: int, max_frame_pixels: int, n: int, height: int, width: int) -> tuple[int, int]:
    """Return the sides as multiples of `side`, at nearly the same aspect ratio, within the limits for all frames."""
    of_frame = min(MAX_FRAME_ROWS * side**2, max_frame_pixels, _MAX_PIXELS // n)
    most = max(of_frame, int(_MIN_PIXELS * 1.05)) * n
    if min(height, width) < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    check_ratio(height, width)
    high, wide, even = round(height / side) * side, round(width / side) * side, round(n / 2) * 2
    if even * high * wide > most:
        shrink = math.sqrt(n * height * width / most)
        return max(side, math.floor(height / shrink / side) * side), max(side, math.floor(width / shrink / side) * side)
    if even * high * wide < _MIN_PIXELS:
        grow = math.sqrt(_MIN_PIXELS / (n * height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return high, wide


FAMILIES = (
    replace(
        QWEN2,
        name="qwen3vl_merger",
        choose_tiling=partial(smart_tiling, min_rows=_MIN_ROWS),
        video=_video,
        build=build,
        patch_layout=patch_layout,
    ),
)
