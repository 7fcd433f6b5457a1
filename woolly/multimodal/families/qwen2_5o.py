"""Qwen 2.5 Omni: the vision encoder of Qwen 2.5 VL, and Whisper's encoder over chunks of 2 s."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from woolly.multimodal.audio import Audio, log_mel_whisper
from woolly.multimodal.audio.chunks import HOP, Float32, silence_after, split_count, split_frames
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.encoder.whisper import whisper_layout, whisper_stages
from woolly.multimodal.families.qwen2a import project
from woolly.multimodal.families.qwen2vl import QWEN2, build_windowed, windowed_layout
from woolly.multimodal.family import AudioFamily

_WINDOW = 200  # mel frames


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks with trailing silence. Rows are averaged in pairs, so a chunk of a single row is dropped."""
    frames = log_mel_whisper(silence_after(audio.samples), settings.n_mels)[: -(-len(audio.samples) // HOP)]
    yield from (part for part in split_frames(frames, settings) if settings.family.rows(len(part), settings))


def chunk_frames(n_samples: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames per chunk."""
    return [n for n in split_count(-(-n_samples // HOP), settings) if settings.family.rows(n, settings)]


FAMILIES = (
    replace(
        QWEN2,
        name="qwen2.5o",
        begin="<|vision_bos|>",
        end="<|vision_eos|>",
        placeholder_texts=("<|vision_bos|><|IMAGE|><|vision_eos|>", "<|IMAGE|>"),
        temporal_patch_size=1,
        video=None,
        build=build_windowed,
        patch_layout=windowed_layout,
    ),
    AudioFamily(
        name="qwen2.5o",
        begin="<|audio_bos|>",
        end="<|audio_eos|>",
        placeholder_texts=("<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>"),
        rows=lambda n, settings: conv_length(n) // 2,
        chunks=chunks,
        chunk_frames=chunk_frames,
        stages=whisper_stages(project, "mm.a.", window=_WINDOW),
        patch_layout=partial(whisper_layout, window=_WINDOW, joined=2),
    ),
)
