"""Audio processors: input features (chunks of log-mel frames) for each family of audio encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.multimodal.audio import (
    DECODE_SEMAPHORE,
    Audio,
    log_mel_gemma,
    log_mel_granite,
    log_mel_nemo,
    log_mel_usm,
    log_mel_whisper,
)
from woolly.multimodal.audio.decode import RATE
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.processed_item import EncoderInput, ProcessedItem
from woolly.multimodal.prompt_replacement import PromptReplacement, make_replacement

Float32 = npt.NDArray[np.float32]

_HOP = 160  # samples per mel frame
_MIN_SECONDS = 0.05  # in some families, shorter audio has no rows
_MIN_SAMPLES = int(_MIN_SECONDS * RATE)
_CHUNK = 30 * RATE  # samples of 30 s


def process_audio(audio: Audio, settings: AudioSettings) -> ProcessedItem:
    """Return the input features of an audio clip; raise RequestError if it is too short.

    At most two threads run this.
    """
    _check_length(audio)
    with DECODE_SEMAPHORE:
        try:
            frames = [np.ascontiguousarray(one) for one in AUDIO_PROCESSORS[settings.projector](audio, settings)]
            inputs = [EncoderInput(one, (1, 1, len(one))) for one in frames]
            return replace(ProcessedItem.of("audio", inputs), seconds=audio.seconds)
        except MemoryError:
            raise RequestError("the audio does not fit into memory; send a shorter clip") from None


def audio_placeholders(audio: Audio, settings: AudioSettings) -> PromptReplacement:
    """Return the placeholders of an audio clip, computed from its length; raise RequestError if it is too short."""
    _check_length(audio)
    inputs = [
        EncoderInput(np.broadcast_to(np.float32(0), (n, settings.n_mels)), (1, 1, n))  # takes no memory
        for n in _CHUNK_FRAMES[settings.projector](len(audio.samples), settings)
    ]
    return make_replacement(ProcessedItem("audio", tuple(inputs), b""), settings)


def _check_length(audio: Audio) -> None:
    if audio.seconds < _MIN_SECONDS:
        raise RequestError(f"the audio has {audio.seconds:.3f} s; expected at least {_MIN_SECONDS} s")


def _ultravox(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks without padding. The last chunk of a long clip gets a zero frame if its length is odd."""
    frames = log_mel_whisper(audio.samples, settings.n_mels)
    yield from _chunks(frames, settings, pads_last=len(frames) > settings.family.max_frames)


def _chunks(frames: Float32, settings: AudioSettings, *, pads_last: bool = False) -> Iterator[Float32]:
    most = settings.family.max_frames
    for first in range(0, len(frames), most):
        part = frames[first : first + most]
        yield np.pad(part, ((0, 1), (0, 0))) if pads_last and len(part) % 2 else part


def _qwen2a(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks with trailing silence, extracted separately. The last row covers one silent frame."""
    most = settings.family.max_frames
    for first in range(0, len(audio.samples), most * _HOP):
        part = audio.samples[first : first + most * _HOP]
        part = np.pad(part, (0, max(0, int(_MIN_SECONDS * audio.rate) - len(part))))
        frames = log_mel_whisper(_silence_after(part)[: most * _HOP], settings.n_mels)
        yield frames[: min(most, 2 * conv_length(-(-len(part) // _HOP)) + 1)]


def _voxtral(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks, the last padded with silence."""
    n = settings.family.max_frames * _HOP
    padded = np.pad(audio.samples, (0, -len(audio.samples) % n))
    yield from _chunks(log_mel_whisper(padded, settings.n_mels), settings)


def _qwen25o(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks with trailing silence. Rows are averaged in pairs, so a chunk of a single row is dropped."""
    frames = log_mel_whisper(_silence_after(audio.samples), settings.n_mels)[: -(-len(audio.samples) // _HOP)]
    yield from (part for part in _chunks(frames, settings) if settings.family.rows(len(part), settings))


def _qwen3a(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks without padding. Attention stays within a chunk."""
    yield from _chunks(log_mel_whisper(audio.samples, settings.n_mels), settings)


def _gemma4a(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks, extracted separately."""
    for first in range(0, len(audio.samples), _CHUNK):
        part = audio.samples[first : first + _CHUNK]
        yield log_mel_gemma(np.pad(part, (0, max(0, _MIN_SAMPLES - len(part)))), settings.n_mels)


def _gemma3na(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks, extracted separately."""
    for first in range(0, len(audio.samples), _CHUNK):
        part = audio.samples[first : first + _CHUNK]
        yield log_mel_usm(np.pad(part, (0, max(0, _MIN_SAMPLES - len(part)))), settings.n_mels)


def _lfm2a(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks, extracted separately."""
    for first in range(0, len(audio.samples), _CHUNK):
        part = audio.samples[first : first + _CHUNK]
        yield log_mel_nemo(np.pad(part, (0, max(0, _MIN_SAMPLES - len(part)))), settings.n_mels)


def _granite(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks of frame pairs."""
    frames = log_mel_granite(audio.samples, settings.n_mels // 2)
    yield from _chunks(frames[: len(frames) // 2 * 2].reshape(-1, settings.n_mels), settings)


def _silence_after(samples: Float32) -> Float32:
    """Append silence to the end of the last frame's window."""
    return np.pad(samples, (0, 4 * _HOP + -len(samples) % _HOP))


# Keyed by `clip.projector_type`.
AUDIO_PROCESSORS: Mapping[str, Callable[[Audio, AudioSettings], Iterator[Float32]]] = {
    "ultravox": _ultravox,
    "qwen2a": _qwen2a,
    "voxtral": _voxtral,
    "qwen2.5o": _qwen25o,
    "qwen3a": _qwen3a,
    "gemma3na": _gemma3na,
    "gemma4a": _gemma4a,
    "granite_speech": _granite,
    "lfm2a": _lfm2a,
}


def _chunk_frames(n: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames of each chunk of `n` frames."""
    most = settings.family.max_frames
    return [min(most, n - first) for first in range(0, n, most)]


def _ultravox_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    own = _chunk_frames(n_samples // _HOP, settings)
    return own if len(own) == 1 else [n + n % 2 for n in own]


def _qwen2a_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    most = settings.family.max_frames
    least = int(_MIN_SECONDS * RATE) // _HOP
    return [min(most, 2 * conv_length(max(n, least)) + 1) for n in _chunk_frames(-(-n_samples // _HOP), settings)]


def _voxtral_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    most = settings.family.max_frames
    return [most] * -(-n_samples // (most * _HOP))


def _qwen25o_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    return [n for n in _chunk_frames(-(-n_samples // _HOP), settings) if settings.family.rows(n, settings)]


def _gemma3na_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    parts = (max(min(_CHUNK, n_samples - first), _MIN_SAMPLES) for first in range(0, n_samples, _CHUNK))
    return [(n + -n % 128 - 513) // _HOP + 1 for n in parts]


def _gemma4a_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    parts = (min(_CHUNK, n_samples - first) for first in range(0, n_samples, _CHUNK))
    return [(max(n, _MIN_SAMPLES) - 1) // _HOP for n in parts]


def _lfm2a_lengths(n_samples: int, settings: AudioSettings) -> list[int]:
    parts = (min(_CHUNK, n_samples - first) for first in range(0, n_samples, _CHUNK))
    return [max(n, _MIN_SAMPLES) // _HOP for n in parts]


# Map number of samples to mel frames per chunk, consistent with AUDIO_PROCESSORS.
_CHUNK_FRAMES: Mapping[str, Callable[[int, AudioSettings], list[int]]] = {
    "ultravox": _ultravox_lengths,
    "qwen2a": _qwen2a_lengths,
    "voxtral": _voxtral_lengths,
    "qwen2.5o": _qwen25o_lengths,
    "qwen3a": lambda n_samples, settings: _chunk_frames(n_samples // _HOP, settings),
    "gemma3na": _gemma3na_lengths,
    "gemma4a": _gemma4a_lengths,
    "lfm2a": _lfm2a_lengths,
    "granite_speech": lambda n_samples, settings: _chunk_frames((n_samples // _HOP + 1) // 2, settings),
}
