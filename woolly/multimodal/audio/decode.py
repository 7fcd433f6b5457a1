"""Audio: mono samples decoded from a path, bytes or an array, with limits that are checked before decoding."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.machine.optional_packages import install_command
from woolly.multimodal.audio.format import MAX_BYTES, MAX_FRAMES, MAX_SECONDS, check_bounds, detect_format
from woolly.multimodal.audio.resample import resample
from woolly.multimodal.audio.wav import decode_wav

# A path, the bytes of a file, or (array, sampling rate): float from -1 to 1 or int16, [n] or [n, channels].
AudioSource = Any

Float32 = npt.NDArray[np.float32]

RATE = 16_000  # Hz, for all audio encoders
_BLOCK = 1 << 16  # frames per read

# Bounds concurrent decoding and feature extraction: the longest clip takes 360 MB before resampling, and 600 MB with
# its spectrogram.
DECODE_SEMAPHORE = threading.BoundedSemaphore(2)


@dataclass(frozen=True, eq=False)
class Audio:
    """Mono audio samples."""

    samples: Float32 = field(repr=False)  # [n], from -1 to 1
    rate: int = RATE  # sampling rate in Hz

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.samples) / self.rate


def read_audio(source: AudioSource, name: str = "the audio") -> Audio:
    """Decode a path, the bytes of a file, or an array with its sampling rate to 16 kHz mono.

    Raise RequestError for unsupported, oversized or damaged audio. The error message begins with `name`.
    """
    if isinstance(source, Audio):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _decode_file(_read_file(path), path.name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode_file(bytes(source), name)
    if isinstance(source, Sequence) and len(source) == 2 and isinstance(source[0], np.ndarray):
        return _to_model_rate(*_from_array(source[0], source[1], name), name)
    kind = type(source).__name__
    raise RequestError(
        f"{name} is a {kind}; expected a path, bytes, or an array with its sampling rate, (array, 16000)"
    )


def _read_file(path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: NUL in path; RuntimeError: no home
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"cannot read audio file {path}: {reason}; check its path") from None


def _decode_file(data: bytes, name: str) -> Audio:
    kind = detect_format(data, name)
    with DECODE_SEMAPHORE:
        try:
            samples, rate = decode_wav(data, name) if kind == "WAV" else _decode_soundfile(data, kind, name)
            return _to_model_rate(samples, rate, name)
        except MemoryError:
            raise RequestError(f"{name} does not fit into memory; send a shorter clip") from None


def _decode_soundfile(data: bytes, kind: str, name: str) -> tuple[Float32, int]:
    """Return the mean of all channels and the sampling rate, decoded by libsndfile."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package is installed, libsndfile is not
        raise RequestError(
            f"{kind} files need the package soundfile: {install_command('audio')}; WAV needs no package"
        ) from None
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            if file.format != kind:
                raise ValueError(f"it is {file.format}")
            check_bounds(file.frames, file.samplerate, file.channels, name)
            return _read_mono(file, kind, name), int(file.samplerate)
    except RequestError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # damaged files raise several classes
        # soundfile's message contains a memory address before libsndfile's reason.
        said = str(getattr(error, "error_string", error))
        reason = " ".join(said.split())[:120] or type(error).__name__
        raise RequestError(f"{name} is a damaged {kind} file ({reason}); export or download it again") from None


def _read_mono(file: Any, kind: str, name: str) -> Float32:
    """Return the mean of all channels. Limits are checked while reading, because the header may be wrong."""
    parts: list[Float32] = []
    n = 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        parts.append(block[:, 0].copy() if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32))
        n += len(block)
        if n > min(MAX_SECONDS * file.samplerate, MAX_FRAMES):
            check_bounds(n, file.samplerate, file.channels, name)
    if n == 0 or (kind == "FLAC" and n < file.frames):
        raise ValueError(f"expected {file.frames} samples, found {n}")
    return np.concatenate(parts)


def _from_array(array: npt.NDArray[Any], rate: Any, name: str) -> tuple[Float32, int]:
    shape = " x ".join(map(str, array.shape))
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise RequestError(f"the sampling rate of {name} is {rate!r}; expected an integer in Hz, such as 16000")
    if array.ndim not in (1, 2):
        raise RequestError(f"{name} is an array of shape {shape}; expected samples, or samples x channels")
    check_bounds(array.shape[0], int(rate), array.shape[1] if array.ndim == 2 else 1, name)
    if array.dtype == np.int16:
        array = array.astype(np.float32) / np.float32(32768)
    elif array.dtype not in (np.float32, np.float64):
        raise RequestError(f"{name} is an array of {array.dtype}; expected float32 from -1 to 1, or int16")
    mixed = array.mean(axis=1) if array.ndim == 2 else array
    return np.array(mixed, np.float32), int(rate)  # a copy: the caller may change the array


def _to_model_rate(samples: Float32, rate: int, name: str) -> Audio:
    """Return the audio resampled to 16 kHz."""
    # Samples beyond 1e4 are invalid, and their squares would overflow a sum.
    if not (samples.max() < 1e4 and samples.min() > -1e4):  # both are false for NaN
        raise RequestError(f"{name} has samples outside -1 to 1; normalize it")
    return Audio(resample(samples, rate, RATE))
