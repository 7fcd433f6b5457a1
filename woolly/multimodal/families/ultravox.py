"""Ultravox: Whisper's encoder, and a projector over stacked rows: norm, SwiGLU, norm, linear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from woolly.multimodal.audio import Audio, log_mel_whisper
from woolly.multimodal.audio.chunks import HOP, Float32, split_count, split_frames
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.whisper import post_norm, whisper_layout, whisper_stages
from woolly.multimodal.family import AudioFamily
from woolly.plan import Tracer

_NORM = 1e-6  # epsilon of the norms in the projector


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks without padding. The last chunk of a long clip gets a zero frame if its length is odd."""
    frames = log_mel_whisper(audio.samples, settings.n_mels)
    for part in split_frames(frames, settings):
        yield np.pad(part, ((0, 1), (0, 0))) if len(part) < len(frames) and len(part) % 2 else part


def chunk_frames(n_samples: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames per chunk."""
    own = split_count(n_samples // HOP, settings)
    return own if len(own) == 1 else [n + n % 2 for n in own]


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages of Whisper's encoder and the projector."""
    encoder = whisper_stages(lambda p, x, hp: p.output_rows(post_norm(p, x, hp)))
    return *encoder(hp), StageBuilder(_projector, ("mm.a.",))


def _projector(p: Tracer, hp: AudioParams) -> None:
    y = p.rms_norm(p.input(width=hp.settings.stack * hp.width), "mm.a.norm_pre", eps=_NORM)
    half = p.rows("mm.a.mlp.1") // 2
    up, gate = (p.linear(y, "mm.a.mlp.1", width=half, first=first) for first in (0, half))
    y = p.rms_norm(p.glu(gate, up, "silu"), "mm.a.norm_mid", eps=_NORM)
    p.output(p.output_rows(p.linear(y, "mm.a.mlp.2", width=p.rows("mm.a.mlp.2"))), "embeddings", "none")


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices of Whisper's encoder and the stacked rows."""
    conv, main = whisper_layout(hp, grid)
    n_rows, stack = len(main.order), hp.settings.stack
    beside = np.full(-(-n_rows // stack) * stack, -1, np.int32)
    beside[:n_rows] = np.arange(n_rows)
    return conv, main, PatchLayout(beside.reshape(-1, stack), np.arange(len(beside) // stack, dtype=np.int32))


FAMILIES = (
    AudioFamily(
        name="ultravox",
        placeholder_texts=("<|audio|>",),
        needs_stack=True,
        rows=lambda n, settings: -(-conv_length(n) // settings.stack),
        chunks=chunks,
        chunk_frames=chunk_frames,
        stages=stages,
        patch_layout=patch_layout,
    ),
)
