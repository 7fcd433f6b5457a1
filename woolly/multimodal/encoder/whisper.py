"""Whisper encoder, also used by Ultravox, Qwen 2 Audio and Voxtral: two convolutions and a transformer.

Each convolution is a stage whose rows gather the rows under its filter. Qwen 2.5 Omni encodes chunks of 2 s separately.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from woolly.errors import ModelError
from woolly.multimodal.audio.settings import conv_length
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder, filter_rows
from woolly.multimodal.encoder.vit import layer
from woolly.plan import Handle, Tracer

_TAPS = 3


def whisper_stages(
    project: Callable[[Tracer, Handle, AudioParams], Handle], *names: str, window: int = 0
) -> Callable[[AudioParams], tuple[StageBuilder, ...]]:
    """Return the function that builds both stages; `project` maps the rows of the last layer to results.

    `names` are prefixes of the tensors that `project` reads. A `window` is a number of mel frames that are encoded
    separately.
    """

    def encoder(p: Tracer, hp: AudioParams) -> None:
        n_places = conv_length(window or hp.settings.family.max_frames)
        if p.rows("a.position_embd") < n_places:
            raise ModelError(f"a.position_embd has {p.rows('a.position_embd')} rows; expected {n_places}")
        x = p.unary(p.linear(p.input(width=_TAPS * hp.width), "a.conv1d.2", width=hp.width), "gelu_erf")
        x = p.embedding_bag(x, "a.position_embd")
        for i in range(hp.n_layers):
            x = layer(p, x, hp, i, act="gelu_erf", mask="block" if window else "all", tower="a")
        p.output(project(p, x, hp), "embeddings", "none")

    return lambda hp: (StageBuilder(_first_conv, ("a.conv1d.1.",)), StageBuilder(encoder, ("a.", *names)))


def _first_conv(p: Tracer, hp: AudioParams) -> None:
    """Build the first convolution."""
    x = p.unary(p.linear(p.input(width=_TAPS * hp.patch), "a.conv1d.1", width=hp.width), "gelu_erf")
    p.output(p.output_rows(x), "embeddings", "none")


def post_norm(p: Tracer, x: Handle, hp: AudioParams) -> Handle:
    """Build the norm after the last layer."""
    return p.layer_norm(x, "a.post_ln", eps=hp.eps)


def whisper_layout(
    hp: AudioParams, grid: Grid, *, window: int = 0, is_even: bool = False, joined: int = 1
) -> tuple[PatchLayout, PatchLayout]:
    """Return the gather indices of both stages, per window.

    If the number of frames is odd and `is_even` is true, the last frame is padding, and only the first convolution
    reads it. Each result joins `joined` rows.
    """
    n = grid[2]
    if not 0 < n <= hp.settings.family.max_frames:
        raise ValueError(f"a chunk has {n} frames; the maximum is {hp.settings.family.max_frames}")
    size = window or n
    filters, halved, gather_rows, attn_ranges = [], [], [], []
    n_filtered = n_rows = 0
    for first in range(0, n, size):
        end = min(first + size, n)
        own = (end - first) // 2 * 2 if is_even else end - first
        filters.append(filter_rows(range(first, first + own), first, end))
        rows = conv_length(own)
        halved.append(filter_rows(n_filtered + 2 * np.arange(rows), n_filtered, n_filtered + own))
        gather_rows.append(np.arange(rows, dtype=np.int32))
        attn_ranges.append(np.tile(np.array([n_rows, n_rows + rows], np.int32), (rows, 1)))
        n_filtered, n_rows = n_filtered + own, n_rows + rows
    return PatchLayout(np.concatenate(filters), np.arange(n_filtered, dtype=np.int32)), PatchLayout(
        np.concatenate(halved),
        np.arange(0, n_rows // joined * joined, joined, dtype=np.int32),
        attn_ranges=np.concatenate(attn_ranges) if window else None,
        gather_rows=np.concatenate(gather_rows)[:, None],
        gather_weights=np.ones((n_rows, 1), np.float32),
    )
