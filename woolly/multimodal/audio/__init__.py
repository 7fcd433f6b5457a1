"""SOUNDS: from the bytes of a file to samples of one channel, and from samples to a spectrogram."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.multimodal.audio.mel import (
        log_mel,
        log_mel_gemma,
        log_mel_granite,
        log_mel_nemo,
        log_mel_usm,
        log_mel_whisper,
    )
    from woolly.multimodal.audio.sound import AT_WORK, Sound, SoundSource, read_sound

__all__ = [
    "AT_WORK",
    "Sound",
    "SoundSource",
    "log_mel",
    "log_mel_gemma",
    "log_mel_granite",
    "log_mel_nemo",
    "log_mel_usm",
    "log_mel_whisper",
    "read_sound",
]

__getattr__ = later(
    __name__,
    {
        "mel": "log_mel log_mel_gemma log_mel_granite log_mel_nemo log_mel_usm log_mel_whisper",
        "sound": "AT_WORK Sound SoundSource read_sound",
    },
)
