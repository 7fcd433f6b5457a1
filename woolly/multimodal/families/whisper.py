"""Whisper encoder, also used by Ultravox, Qwen 2 Audio and Voxtral: two convolutions and a transformer.

Each convolution is a stage whose rows gather the rows under its filter. Qwen 2.5 Omni encodes chunks of 2 s separately.
"""

from __future__ import annotations

import numpy as np

from woolly.errors import ModelError
from woolly.multimodal.audio.settings import conv_length
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder, filter_rows
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.plan import Tracer

PROJECTORS = ("ultravox", "qwen2a", "voxtral", "qwen2.5o")

_CHUNK = 200  # mel frames per chunk of Qwen 2.5 Omni
_NORM = 1e-6  # epsilon of the norms in Ultravox' projector
_TAPS = 3


def _first_conv(p: Tracer, hp: AudioParams) -> None:
    """Build the first convolution."""
    x = p.unary(p.linear(p.input(width=_TAPS * hp.patch), "a.conv1d.1", width=hp.width), "gelu_erf")
    p.output(p.output_rows(x), "embeddings", "none")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """Build the second convolution, the layers and the projector (Ultravox: without the projector)."""
    kind = hp.settings.projector
    n_places = conv_length(_CHUNK if kind == "qwen2.5o" else hp.settings.family.max_frames)
    if p.rows("a.position_embd") < n_places:
        raise ModelError(f"a.position_embd has {p.rows('a.position_embd')} rows; expected {n_places}")
    x = p.unary(p.linear(p.input(width=_TAPS * hp.width), "a.conv1d.2", width=hp.width), "gelu_erf")
    x = p.embedding_bag(x, "a.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf", mask="block" if kind == "qwen2.5o" else "all", tower="a")
    if kind in ("qwen2a", "qwen2.5o"):
        y = p.layer_norm(p.merge_patches(x, rows=2, kind="mean"), "a.post_ln", eps=hp.eps)
        y = p.linear(y, "mm.a.fc", width=p.rows("mm.a.fc"))
    else:
        y = p.layer_norm(x, "a.post_ln", eps=hp.eps)
        if kind == "voxtral":
            y = mlp(p, p.merge_patches(y, rows=hp.settings.stack, kind="concat"), "mm.a.mlp.1", "mm.a.mlp.2")
        else:
            y = p.output_rows(y)
    p.output(y, "embeddings", "none")


def _projector(p: Tracer, hp: AudioParams) -> None:
    """Build the projector of Ultravox: stacked rows, norm, SwiGLU, norm, linear."""
    y = p.rms_norm(p.input(width=hp.settings.stack * hp.width), "mm.a.norm_pre", eps=_NORM)
    half = p.rows("mm.a.mlp.1") // 2
    up, gate = (p.linear(y, "mm.a.mlp.1", width=half, first=first) for first in (0, half))
    y = p.rms_norm(p.glu(gate, up, "silu"), "mm.a.norm_mid", eps=_NORM)
    p.output(p.output_rows(p.linear(y, "mm.a.mlp.2", width=p.rows("mm.a.mlp.2"))), "embeddings", "none")


_FIRST = StageBuilder(_first_conv, ("a.conv1d.1.",))


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages of the audio encoder's family."""
    if hp.settings.projector == "ultravox":
        return _FIRST, StageBuilder(_encoder, ("a.",)), StageBuilder(_projector, ("mm.a.",))
    return _FIRST, StageBuilder(_encoder, ("a.", "mm.a."))


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices of each stage, per chunk. Only Qwen 2.5 Omni uses several chunks."""
    n, kind, stack = grid[2], hp.settings.projector, hp.settings.stack
    if not 0 < n <= hp.settings.family.max_frames:
        raise ValueError(f"a chunk has {n} frames; the maximum is {hp.settings.family.max_frames}")
    size = _CHUNK if kind == "qwen2.5o" else n
    filters, halved, gather_rows, attn_ranges = [], [], [], []
    n_filtered = n_rows = 0
    for first in range(0, n, size):
        end = min(first + size, n)
        # If the number of frames is odd, the last frame is padding, and only the first convolution reads it.
        own = (end - first) // 2 * 2 if kind in ("qwen2a", "voxtral") else end - first
        filters.append(filter_rows(range(first, first + own), first, end))
        rows = conv_length(own)
        halved.append(filter_rows(n_filtered + 2 * np.arange(rows), n_filtered, n_filtered + own))
        gather_rows.append(np.arange(rows, dtype=np.int32))
        attn_ranges.append(np.tile(np.array([n_rows, n_rows + rows], np.int32), (rows, 1)))
        n_filtered, n_rows = n_filtered + own, n_rows + rows
    joined = {"qwen2a": 2, "qwen2.5o": 2, "voxtral": stack}.get(kind, 1)
    conv = PatchLayout(np.concatenate(filters), np.arange(n_filtered, dtype=np.int32))
    main = PatchLayout(
        np.concatenate(halved),
        np.arange(0, n_rows // joined * joined, joined, dtype=np.int32),
        attn_ranges=np.concatenate(attn_ranges) if kind == "qwen2.5o" else None,
        gather_rows=np.concatenate(gather_rows)[:, None],
        gather_weights=np.ones((n_rows, 1), np.float32),
    )
    if kind != "ultravox":
        return conv, main
    beside = np.full(-(-n_rows // stack) * stack, -1, np.int32)
    beside[:n_rows] = np.arange(n_rows)
    return conv, main, PatchLayout(beside.reshape(-1, stack), np.arange(len(beside) // stack, dtype=np.int32))
