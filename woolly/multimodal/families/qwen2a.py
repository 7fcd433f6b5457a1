"""Qwen 2 Audio: Whisper's encoder, rows averaged in pairs, a norm and a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from woolly.multimodal.audio import Audio, log_mel_whisper
from woolly.multimodal.audio.chunks import HOP, MIN_SAMPLES, Float32, silence_after, split_count
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.whisper import post_norm, whisper_layout, whisper_stages
from woolly.multimodal.family import AudioFamily
from woolly.plan import Handle, Tracer


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks with trailing silence, extracted separately. The last row covers one silent frame."""
    most = settings.family.max_frames
    for first in range(0, len(audio.samples), most * HOP):
        part = audio.samples[first : first + most * HOP]
        part = np.pad(part, (0, max(0, MIN_SAMPLES - len(part))))
        frames = log_mel_whisper(silence_after(part)[: most * HOP], settings.n_mels)
        yield frames[: min(most, 2 * conv_length(-(-len(part) // HOP)) + 1)]


def chunk_frames(n_samples: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames per chunk."""
    most = settings.family.max_frames
    lengths = split_count(-(-n_samples // HOP), settings)
    return [min(most, 2 * conv_length(max(n, MIN_SAMPLES // HOP)) + 1) for n in lengths]


def project(p: Tracer, x: Handle, hp: AudioParams) -> Handle:
    """Build the mean of two rows, the norm and the matrix."""
    y = post_norm(p, p.merge_patches(x, rows=2, kind="mean"), hp)
    return p.linear(y, "mm.a.fc", width=p.rows("mm.a.fc"))


FAMILIES = (
    AudioFamily(
        name="qwen2a",
        begin="<|audio_bos|>",
        end="<|audio_eos|>",
        placeholder_texts=("<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>"),
        rows=lambda n, settings: n // 4,
        chunks=chunks,
        chunk_frames=chunk_frames,
        stages=whisper_stages(project, "mm.a."),
        patch_layout=partial(whisper_layout, is_even=True, joined=2),
    ),
)
