"""Chunks of audio for encoders: parts of a spectrogram, or of samples with a spectrogram each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.multimodal.audio.decode import RATE

if TYPE_CHECKING:
    from woolly.multimodal.audio import Audio
    from woolly.multimodal.audio.settings import AudioSettings

Float32 = npt.NDArray[np.float32]
LogMel = Callable[[Float32, int], Float32]  # maps samples and a number of mel bins to [frames, n_mels]

HOP = 160  # samples per mel frame
MIN_SECONDS = 0.05  # in some families, shorter audio has no rows
MIN_SAMPLES = int(MIN_SECONDS * RATE)
_CHUNK = 30 * RATE  # samples of 30 s


def split_frames(frames: Float32, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks of at most `max_frames` frames."""
    most = settings.family.max_frames
    for first in range(0, len(frames), most):
        yield frames[first : first + most]


def split_count(n: int, settings: AudioSettings) -> list[int]:
    """Return the frames of each chunk of `n` frames."""
    most = settings.family.max_frames
    return [min(most, n - first) for first in range(0, n, most)]


def split_samples(audio: Audio, settings: AudioSettings, log_mel: LogMel) -> Iterator[Float32]:
    """Yield the spectrograms of 30 s each, of which the last is at least 0.05 s long."""
    for first in range(0, len(audio.samples), _CHUNK):
        part = audio.samples[first : first + _CHUNK]
        yield log_mel(np.pad(part, (0, max(0, MIN_SAMPLES - len(part)))), settings.n_mels)


def split_sample_count(n_samples: int) -> Iterator[int]:
    """Yield the samples of each spectrogram of `split_samples`."""
    yield from (max(min(_CHUNK, n_samples - first), MIN_SAMPLES) for first in range(0, n_samples, _CHUNK))


def silence_after(samples: Float32) -> Float32:
    """Append silence to the end of the last frame's window."""
    return np.pad(samples, (0, 4 * HOP + -len(samples) % HOP))
