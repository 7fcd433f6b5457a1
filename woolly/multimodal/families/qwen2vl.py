"""Qwen 2 VL and 2.5 VL: any image size, 2D rope, 2 x 2 patches per row, videos.

Qwen 2.5 VL has RMS norms and SwiGLU. Every n-th layer has full attention, the others window attention.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, Int32, PatchLayout, merge_order, position_ids
from woolly.multimodal.encoder.vit import Norm, layer, mlp, normed, vision_rope
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.smart_resize import MAX_RATIO, max_pixels, smart_resize, smart_tiling
from woolly.multimodal.video import VideoSampling
from woolly.plan import Handle, Tracer
from woolly.plan.ops.attention import Mask

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

_WINDOW = 112  # pixels per side

_FPS = 2.0
_MIN_FRAMES, _MAX_FRAMES = 4, 768
MAX_FRAME_ROWS = 768
# Minimum rows per frame, and maximum rows of all frame pairs.
_MIN_ROWS, _MAX_ROWS = 128, int(128_000 * 0.9)


def build(p: Tracer, hp: TowerParams, norm: Norm = "layer", period: int = 1) -> None:
    """Build the encoder. Of each `period` layers, the last has full attention."""
    x, rope = patches(p, hp), vision_rope(hp)
    for i in range(hp.n_layers):
        mask: Mask = "all" if (i + 1) % period == 0 else "block"
        x = layer(p, x, hp, i, act=hp.act or "gelu_quick", norm=norm, rope=rope, mask=mask)
    y = p.merge_patches(normed(p, x, "v.post_ln", hp, norm), rows=hp.merge**2, kind="concat")
    p.output(mlp(p, y, "mm.0", "mm.2"), "embeddings", "none")


def build_windowed(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder of Qwen 2.5 VL."""
    build(p, hp, "rms", hp.keys.positive("vision.n_wa_pattern"))


def patches(p: Tracer, hp: TowerParams) -> Handle:
    """Build the patch embedding of two frames; a still image is both frames."""
    given = p.input(width=hp.patch * hp.settings.family.temporal_patch_size)
    first, second = (
        p.split(given, hp.patch, hp.patch) if hp.settings.family.temporal_patch_size == 2 else (given, given)
    )
    return p.linear(first, "v.patch_embd", width=hp.width) + p.linear(second, "v.patch_embd.weight.1", width=hp.width)


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order((1, *grid[1:]), hp.merge)
    outputs = np.arange(0, len(order), hp.merge**2, dtype=np.int32)
    return PatchLayout(both_frames(hp, grid, order), outputs, rope_positions=position_ids(grid, order))


def windowed_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, grouped by attention window."""
    n_rows = hp.merge**2
    blocks = merge_order((1, *grid[1:]), hp.merge).reshape(-1, n_rows)
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


def choose_frame_count(n_frames: int, rate: float) -> float:
    """Return the number of frames at two per second, at most all; raise RequestError for a single frame."""
    if n_frames < 2:
        raise RequestError("the video has one frame, but this model needs at least 2; send an image")
    return min(max(n_frames / rate * _FPS, _MIN_FRAMES), _MAX_FRAMES, n_frames)


def _video(settings: VisionSettings) -> VideoSampling:
    side, most = settings.patch_size * settings.merge_size, max_pixels(settings)
    fit = partial(_fit_frame, side, most)
    return VideoSampling(
        f"qwen2vl {side} {most}", _choose_frames, fit, temporal_patch_size=2, uses_pillow=True, is_one_item=True
    )


def _choose_frames(n_frames: int, rate: float) -> list[int]:
    """Sample two frames per second in pairs, evenly from the first."""
    even = math.floor(choose_frame_count(n_frames, rate) / 2) * 2
    step = n_frames / even
    return [int(np.float32(i * step)) for i in range(even)]  # f32, as in the processor


def _fit_frame(side: int, max_frame_pixels: int, n: int, height: int, width: int) -> tuple[int, int]:
    """Return the sides as multiples of `side`, with rows distributed equally over frames."""
    least = _MIN_ROWS * side**2
    share = min(MAX_FRAME_ROWS * side**2, _MAX_ROWS * side**2 * 2 // n)
    check_ratio(height, width)
    return smart_resize(height, width, side, least, min(max(share, int(least * 1.05)), max_frame_pixels))


def check_ratio(height: int, width: int) -> None:
    """Raise RequestError for an elongated video."""
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RequestError(
            f"the video has {width} x {height} pixels, but the limit of the aspect ratio is {MAX_RATIO}; crop it"
        )


QWEN2 = VisionFamily(
    name="qwen2vl_merger",
    begin="<|vision_start|>",
    end="<|vision_end|>",
    placeholder_texts=("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    has_mrope=True,
    merge_size=2,
    merge_key="spatial_merge_size",
    temporal_patch_size=2,
    choose_tiling=smart_tiling,
    video=_video,
    build=build,
    patch_layout=patch_layout,
)

FAMILIES = (
    QWEN2,
    replace(
        QWEN2,
        name="qwen2.5vl_merger",
        positions_per_second=2,  # not in files, but 2 in all checkpoints
        build=build_windowed,
        patch_layout=windowed_layout,
    ),
)
