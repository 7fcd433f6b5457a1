"""The Audio: samples of one channel of what a caller gives; its bounds are checked before anything is decoded."""

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
from woolly.machine.extra import how_to_add
from woolly.multimodal.audio.format import MAX_BYTES, MAX_FRAMES, MAX_SECONDS, check_bounds, sniff
from woolly.multimodal.audio.resample import resample
from woolly.multimodal.audio.wav import decode_wav

# A path, the bytes of a file, or an array with its rate: float from -1 to 1 or int16, [n] or [n, channels].
AudioSource = Any

Float32 = npt.NDArray[np.float32]

RATE = 16_000  # what all encoders of speech read
_BLOCK = 1 << 16  # frames that are decoded at once

# Audio clips decoded or processed concurrently: the longest takes 360 MB until it has the model's rate, and 600 MB with
# its spectrogram.
DECODE_SEMAPHORE = threading.BoundedSemaphore(2)


@dataclass(frozen=True, eq=False)
class Audio:
    """Mono audio samples."""

    samples: Float32 = field(repr=False)  # [n], from -1 to 1
    rate: int = RATE  # samples per second

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate


def read_audio(source: AudioSource, name: str = "the audio") -> Audio:
    """Returns the audio of a path, of the bytes of a file, or of an array with its rate, in the models' rate.

    Channels become their mean. RequestError if it is none, too long, damaged, or of a format that is not taken;
    `name` begins the sentence.
    """
    if isinstance(source, Audio):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _decoded(_read_file(path), path.name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decoded(bytes(source), name)
    if isinstance(source, Sequence) and len(source) == 2 and isinstance(source[0], np.ndarray):
        return _finished(*_from_array(source[0], source[1], name), name)
    kind = type(source).__name__
    raise RequestError(f"{name} is a {kind}; a path, bytes, or an array with its rate, (array, 16000), was expected")


def _read_file(path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL; RuntimeError: no home
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"the audio {path} cannot be read ({reason})") from None


def _decoded(data: bytes, name: str) -> Audio:
    kind = sniff(data, name)
    with DECODE_SEMAPHORE:
        try:
            samples, rate = decode_wav(data, name) if kind == "WAV" else _decode(data, kind, name)
            return _finished(samples, rate, name)
        except MemoryError:
            raise RequestError(f"{name} does not fit into the memory; send a shorter one") from None


def _decode(data: bytes, kind: str, name: str) -> tuple[Float32, int]:
    """Returns the mean of all channels and the rate, by libsndfile."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package is there, the library is not
        raise RequestError(
            f"{kind} files need the package soundfile: {how_to_add('audio')}; WAV is read without it"
        ) from None
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            if file.format != kind:
                raise ValueError(f"it is {file.format}")
            check_bounds(file.frames, file.samplerate, file.channels, name)
            return _mixed(file, kind, name), int(file.samplerate)
    except RequestError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises errors of several classes
        # soundfile's own text has the address of the file in memory before libsndfile's reason.
        said = str(getattr(error, "error_string", error))
        reason = " ".join(said.split())[:120] or type(error).__name__
        raise RequestError(f"{name} is a damaged {kind} file ({reason}); send it again, or another one") from None


def _mixed(file: Any, kind: str, name: str) -> Float32:
    """Returns the mean of all channels. Headers may lie: no more is read than is taken, and less is an error."""
    parts: list[Float32] = []
    n = 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        parts.append(block[:, 0].copy() if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32))
        n += len(block)
        if n > min(MAX_SECONDS * file.samplerate, MAX_FRAMES):
            check_bounds(n, file.samplerate, file.channels, name)
    if n == 0 or (kind == "FLAC" and n < file.frames):
        raise ValueError(f"it says {file.frames} samples, and has {n}")
    return np.concatenate(parts)


def _from_array(array: npt.NDArray[Any], rate: Any, name: str) -> tuple[Float32, int]:
    shape = " x ".join(map(str, array.shape))
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise RequestError(f"the rate of {name} is {rate!r}; samples per second, such as 16000, were expected")
    if array.ndim not in (1, 2):
        raise RequestError(f"{name} is an array of {shape}; samples, or samples x channels, were expected")
    check_bounds(array.shape[0], int(rate), array.shape[1] if array.ndim == 2 else 1, name)
    if array.dtype == np.int16:
        array = array.astype(np.float32) / np.float32(32768)
    elif array.dtype not in (np.float32, np.float64):
        raise RequestError(f"{name} is an array of {array.dtype}; float32 from -1 to 1, or int16, was expected")
    mixed = array.mean(axis=1) if array.ndim == 2 else array
    return np.array(mixed, np.float32), int(rate)  # a copy: the caller may write to his


def _finished(samples: Float32, rate: int, name: str) -> Audio:
    """Returns the audio in the models' rate."""
    # A float beyond 1e4 is no sample, and sums of its powers would leave the range of floats.
    if not (samples.max() < 1e4 and samples.min() > -1e4):  # neither holds for what is no number
        raise RequestError(f"{name} has samples that are no numbers from -1 to 1; send another one")
    return Audio(resample(samples, rate, RATE))
