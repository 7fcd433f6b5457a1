"""Audio: decoding of files to mono samples, resampling, log-mel spectrograms."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.multimodal.audio.decode import DECODE_SEMAPHORE, Audio, AudioSource, read_audio
    from woolly.multimodal.audio.mel import (
        log_mel,
        log_mel_gemma,
        log_mel_granite,
        log_mel_nemo,
        log_mel_usm,
        log_mel_whisper,
    )

__all__ = [
    "DECODE_SEMAPHORE",
    "Audio",
    "AudioSource",
    "log_mel",
    "log_mel_gemma",
    "log_mel_granite",
    "log_mel_nemo",
    "log_mel_usm",
    "log_mel_whisper",
    "read_audio",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "mel": "log_mel log_mel_gemma log_mel_granite log_mel_nemo log_mel_usm log_mel_whisper",
        "decode": "DECODE_SEMAPHORE Audio AudioSource read_audio",
    },
)
