"""Log-mel spectrograms of the audio encoders, in float64 like transformers' NumPy feature extractors."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

Scale = Literal["slaney", "htk"]

MAX_MELS = 512  # mel bins; published models have 80 or 128
_WINDOW = 400  # samples per frame: 25 ms
_BLOCK = 4096  # frames per FFT call: 13 MB of complex numbers

# Slaney mel scale: linear up to 1,000 Hz (15 mel), then 27 steps per factor of 6.4.
_LINEAR, _KNEE, _STEP = 200 / 3, 15.0, np.log(6.4) / 27.0


def log_mel_whisper(samples: Float32, n_mels: int) -> Float32:
    """Return the log-mel spectrogram of Whisper, [frames, n_mels].

    Hann windows of 25 ms every 10 ms at 16 kHz, with reflect padding and without the last frame; log10 of power,
    clamped to 8 below the maximum, then (x + 4) / 4.
    """
    return _normalize_whisper(log_mel(samples, n_mels)[:-1])


def log_mel_granite(samples: Float32, n_mels: int) -> Float32:
    """Return the log-mel spectrogram of Granite Speech, [frames, n_mels].

    Like Whisper, but with the HTK scale, the last frame, an FFT of 512 samples and filters of unit height, as in
    torchaudio.
    """
    return _normalize_whisper(log_mel(samples, n_mels, n_fft=512, scale="htk"))


def log_mel_gemma(samples: Float32, n_mels: int) -> Float32:
    """Return the log-mel spectrogram of Gemma 4, [frames, n_mels]: log amplitudes of 20 ms windows every 10 ms.

    10 ms of silence are prepended, and the last sample is dropped.
    """
    padded = np.pad(samples, (160, 0))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 320)
    frames = np.lib.stride_tricks.sliding_window_view(padded[:-1], 320)[::160]
    filters = mel_filters(n_mels, 512, 16000, "htk")
    out = np.empty((len(frames), n_mels), np.float32)
    for first in range(0, len(frames), _BLOCK):
        amplitudes = np.abs(np.fft.rfft(frames[first : first + _BLOCK] * window, n=512, axis=1))
        out[first : first + _BLOCK] = np.log(amplitudes @ filters + 1e-3)
    return out


def log_mel_usm(samples: Float32, n_mels: int) -> Float32:
    """Return the log-mel spectrogram of Gemma 3n (USM), [frames, n_mels]: log amplitudes of 32 ms windows every 10 ms.

    Pre-emphasis per window. The audio is padded to a multiple of 128 samples, and the last sample is dropped.
    """
    padded = np.pad(samples, (0, -len(samples) % 128))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(512) / 512)
    frames = np.lib.stride_tricks.sliding_window_view(padded[:-1], 512)[::160]
    filters = mel_filters(n_mels, 1024, 16000, "htk", 125.0, 7600.0)
    out = np.empty((len(frames), n_mels), np.float32)
    for first in range(0, len(frames), _BLOCK):
        emphasized = frames[first : first + _BLOCK].astype(np.float64)
        emphasized[:, 1:] -= 0.97 * frames[first : first + _BLOCK, :-1]
        emphasized[:, 0] *= 1 - 0.97
        amplitudes = np.abs(np.fft.rfft(emphasized * window, n=1024, axis=1))
        out[first : first + _BLOCK] = np.log(np.maximum(amplitudes @ filters, 1e-5))
    return out


def log_mel_nemo(samples: Float32, n_mels: int) -> Float32:
    """Return the log-mel spectrogram of NeMo, [frames, n_mels]: log power with mean 0 and deviation 1 per mel bin.

    Pre-emphasis of the audio; FFT of 512 samples with centered windows and zero padding.
    """
    emphasized = samples.astype(np.float64)
    emphasized[1:] -= 0.97 * samples[:-1]
    window = np.pad(nemo_window(), 56)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(emphasized, 256), 512)[::160][: len(samples) // 160]
    filters = mel_filters(n_mels, 512, 16000)
    out = np.empty((len(frames), n_mels))
    for first in range(0, len(frames), _BLOCK):
        power = np.abs(np.fft.rfft(frames[first : first + _BLOCK] * window, axis=1)) ** 2
        out[first : first + _BLOCK] = np.log(power @ filters + 2.0**-24)
    out -= out.mean(axis=0)
    out /= np.sqrt((out**2).sum(axis=0) / max(len(out) - 1, 1)) + 1e-5
    return out.astype(np.float32)


def nemo_window() -> Float64:
    """Return the symmetric Hann window of NeMo, [400]."""
    window: Float64 = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / (_WINDOW - 1))
    return window


def _normalize_whisper(spectrum: Float64) -> Float32:
    np.maximum(spectrum, spectrum.max() - 8.0, out=spectrum)  # in place, because half an hour takes 184 MB
    spectrum += 4.0
    spectrum /= 4.0
    return spectrum.astype(np.float32)


def log_mel(
    samples: Float32, n_mels: int, *, n_fft: int = 400, hop: int = 160, rate: int = 16000, scale: Scale = "slaney"
) -> Float64:
    """Return log10 of mel power, at least -10, [1 + n // hop, n_mels]."""
    padded = np.pad(samples, n_fft // 2, mode="reflect")  # float64 only per block, after windowing
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    window = np.pad(window, (n_fft - _WINDOW) // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
    filters = mel_filters(n_mels, n_fft, rate, scale)
    out = np.empty((len(frames), n_mels))
    for first in range(0, len(frames), _BLOCK):
        power = np.abs(np.fft.rfft(frames[first : first + _BLOCK] * window, axis=1)) ** 2
        out[first : first + _BLOCK] = power @ filters
    np.maximum(out, 1e-10, out=out)
    return np.log10(out, out=out)


@lru_cache(maxsize=8)
def mel_filters(
    n_mels: int, n_fft: int, rate: int, scale: Scale = "slaney", low: float = 0.0, high: float = 0.0
) -> Float64:
    """Return the mel filter bank [1 + n_fft // 2, n_mels], from 0 to the Nyquist frequency.

    Slaney filters have unit area. HTK filters have unit height and the limits `low` and `high` in Hz.
    """
    if scale == "htk":
        bottom, top = (2595.0 * np.log10(1.0 + hertz / 700.0) for hertz in (low, high or rate / 2))
        edges = 700.0 * (10.0 ** (np.linspace(bottom, top, n_mels + 2) / 2595.0) - 1.0)
    else:
        edges = _to_hertz(np.linspace(0.0, float(_to_mel(rate / 2)), n_mels + 2))
    bins = np.linspace(0, rate // 2, 1 + n_fft // 2)
    below, above = edges[:-2], edges[2:]
    rising = (bins[:, None] - below) / np.diff(edges)[:-1]
    falling = (above - bins[:, None]) / np.diff(edges)[1:]
    filters = np.maximum(0.0, np.minimum(rising, falling))
    if scale == "slaney":
        filters *= 2.0 / (above - below)
    filters.setflags(write=False)
    return filters


def _to_mel(hertz: float) -> float:
    mel = hertz / _LINEAR
    return mel if mel < _KNEE else _KNEE + float(np.log(hertz / 1000.0)) / _STEP


def _to_hertz(mel: Float64) -> Float64:
    return np.where(mel < _KNEE, mel * _LINEAR, 1000.0 * np.exp(_STEP * (mel - _KNEE)))
