"""WAV decoder in NumPy: PCM of 8 to 32 bits and floats."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.multimodal.audio.format import check_bounds

Float32 = npt.NDArray[np.float32]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_NAMES = {2: "ADPCM", 6: "A-law", 7: "mu-law", 0x11: "ADPCM", 0x31: "GSM", 0x55: "MP3"}
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # size of the data chunk in files written while recording
_BLOCK = 1 << 20  # frames per conversion


def decode_wav(data: bytes, name: str) -> tuple[Float32, int]:
    """Return the mean of all channels, from -1 to 1, and the sampling rate; raise RequestError for a damaged file."""
    header: tuple[int, int, int, int, int] | None = None
    for kind, start, size in _chunks(data):
        if kind == b"fmt ":
            header = _read_header(data[start : start + min(size, 40)], name)
        elif kind == b"data":
            if header is None:
                raise _damaged(name, "data chunk before fmt chunk")
            return _read_samples(data, start, size, header, name)
    raise _damaged(name, "no fmt chunk" if header is None else "no data chunk")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and length of each chunk."""
    at = 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        yield kind, at + 8, size
        at += 8 + size + size % 2


def _read_header(chunk: bytes, name: str) -> tuple[int, int, int, int, int]:
    """Return format code, channels, sampling rate, bytes per frame and bits per sample."""
    if len(chunk) < 16:
        raise _damaged(name, "truncated fmt chunk")
    coding, channels, rate, _, n_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if coding == _EXTENSIBLE and len(chunk) >= 26:
        coding = struct.unpack_from("<H", chunk, 24)[0]
    if (coding, bits) not in _READERS:
        what = (
            _NAMES.get(coding, f"format code {coding}") if coding not in (_PCM, _FLOAT) else f"samples of {bits} bits"
        )
        raise RequestError(f"{name} is a WAV file with {what}, which is not supported; save it as 16-bit PCM")
    if n_bytes != channels * bits // 8:
        raise _damaged(name, f"{n_bytes} bytes per frame for {channels} channels of {bits} bits")
    return coding, channels, rate, n_bytes, bits


def _read_samples(
    data: bytes, start: int, size: int, header: tuple[int, int, int, int, int], name: str
) -> tuple[Float32, int]:
    coding, channels, rate, n_bytes, bits = header
    there = len(data) - start
    if size in _UNKNOWN_SIZES:
        size = there
    elif size > there:
        raise _damaged(name, f"truncated: expected {size} bytes of samples, got {there}")
    n_frames = size // n_bytes if n_bytes else 0
    check_bounds(n_frames, rate, channels, name)
    samples = np.empty(n_frames, np.float32)
    read = _READERS[coding, bits]
    for first in range(0, n_frames, _BLOCK):
        n = min(_BLOCK, n_frames - first)
        raw = np.frombuffer(data, np.uint8, n * n_bytes, start + first * n_bytes)
        frames = read(raw).reshape(n, channels)
        samples[first : first + n] = frames[:, 0] if channels == 1 else frames.mean(axis=1, dtype=np.float32)
    return samples, rate


def _pcm(bits: int) -> Callable[[npt.NDArray[np.uint8]], Float32]:
    def read(raw: npt.NDArray[np.uint8]) -> Float32:
        if bits == 8:
            return (raw / 128.0 - 1.0).astype(np.float32)
        if bits == 24:
            wide = np.zeros((len(raw) // 3, 4), np.uint8)
            wide[:, 1:] = raw.reshape(-1, 3)
            return (wide.reshape(-1).view(np.dtype("<i4")) / 2**31).astype(np.float32)
        return (raw.view(np.dtype(f"<i{bits // 8}")) / 2.0 ** (bits - 1)).astype(np.float32)

    return read


def _floats(bits: int) -> Callable[[npt.NDArray[np.uint8]], Float32]:
    def read(raw: npt.NDArray[np.uint8]) -> Float32:
        with np.errstate(over="ignore", invalid="ignore"):  # non-finite samples are rejected later
            return raw.view(np.dtype(f"<f{bits // 8}")).astype(np.float32)

    return read


_READERS: Mapping[tuple[int, int], Callable[[npt.NDArray[np.uint8]], Float32]] = {
    **{(_PCM, bits): _pcm(bits) for bits in (8, 16, 24, 32)},
    **{(_FLOAT, bits): _floats(bits) for bits in (32, 64)},
}


def _damaged(name: str, reason: str) -> RequestError:
    return RequestError(f"{name} is a damaged WAV file ({reason}); export or download it again")
