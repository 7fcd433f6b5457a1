"""Voxtral: Whisper's encoder over chunks of 30 s, and an MLP over stacked rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from woolly.multimodal.audio import Audio, log_mel_whisper
from woolly.multimodal.audio.chunks import HOP, Float32, split_frames
from woolly.multimodal.audio.settings import AudioSettings
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.vit import mlp
from woolly.multimodal.encoder.whisper import post_norm, whisper_layout, whisper_stages
from woolly.multimodal.family import AudioFamily
from woolly.plan import Handle, Tracer


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks, the last padded with silence."""
    n = settings.family.max_frames * HOP
    padded = np.pad(audio.samples, (0, -len(audio.samples) % n))
    yield from split_frames(log_mel_whisper(padded, settings.n_mels), settings)


def chunk_frames(n_samples: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames per chunk."""
    most = settings.family.max_frames
    return [most] * -(-n_samples // (most * HOP))


def _project(p: Tracer, x: Handle, hp: AudioParams) -> Handle:
    stacked = p.merge_patches(post_norm(p, x, hp), rows=hp.settings.stack, kind="concat")
    return mlp(p, stacked, "mm.a.mlp.1", "mm.a.mlp.2")


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices of Whisper's encoder, with a result per stack."""
    return whisper_layout(hp, grid, is_even=True, joined=hp.settings.stack)


FAMILIES = (
    AudioFamily(
        name="voxtral",
        begin="[BEGIN_AUDIO]",
        placeholder_texts=("[BEGIN_AUDIO][AUDIO]", "[AUDIO]"),
        needs_stack=True,
        rows=lambda n, settings: n // 2 // settings.stack,
        chunks=chunks,
        chunk_frames=chunk_frames,
        stages=whisper_stages(_project, "mm.a."),
        patch_layout=patch_layout,
    ),
)
