"""Video: sampled frames of a file as images, with their times.

FFmpeg reads the file in a subprocess with limits, as pdfium does for PDF files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from woolly.errors import RequestError
from woolly.machine.limited_process import can_start
from woolly.machine.optional_packages import install_command
from woolly.multimodal.decoder_process import run_decoder
from woolly.multimodal.image import Image, check_pillow
from woolly.multimodal.image_formats import MAX_BYTES
from woolly.multimodal.pdf import FileCache

SUPPORTED = "MP4, MOV, WebM or MKV"
_MAX_SECONDS = 600
_MAX_PIXELS = 4096 * 2304  # per frame
_MAX_HEADER_BYTES = 4096  # output of the subprocess with duration and size, or with an error

_MEMORY = 2 << 30
_SECONDS = 60  # CPU seconds: ten minutes of 1080p at 200 frames per second
_PATIENCE = 180.0
_SLOTS = threading.BoundedSemaphore(1)

# Brands of still images and audio, whose files begin like videos.
_STILL = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1", b"M4A ")


@dataclass(frozen=True)
class VideoSampling:
    """Frame sampling and frame size of a model family."""

    name: str  # equal if all other fields are equal
    sample: Callable[[int, float], list[int]]  # maps number and rate of frames to frame numbers
    resize: Callable[[int, int, int], tuple[int, int]]  # maps number and size of sampled frames to height and width
    temporal_patch_size: int = 1  # frames per encoder input; the last frame is repeated to fill it
    uses_pillow: bool = False  # resize with Pillow's bicubic filter, as for images, instead of FFmpeg
    is_one_item: bool = False  # all frames are consecutive rows in the prompt; otherwise a text precedes each frame
    texts: Callable[[Video], list[str]] = lambda video: [f"<{frame.seconds:.1f} seconds>" for frame in video.frames]
    end: str = ""  # text after the last frame


@dataclass(frozen=True, eq=False)
class Frame:
    """Decoded frame, or several frames of one encoder input."""

    seconds: float  # time from the start; the mean for several frames
    width: int
    height: int
    compressed: bytes = field(repr=False)
    temporal_patch_size: int = 1  # number of frames
    length: float = 0.0  # duration of the video
    rate: float = 0.0  # sampled frames per second
    text: str = ""

    @property
    def images(self) -> list[Image]:
        """Decoded frames in order; raise RequestError for invalid output of the subprocess."""
        n_bytes = self.temporal_patch_size * self.width * self.height * 3
        shape = self.temporal_patch_size, self.height, self.width, 3
        try:
            pixels = zlib.decompressobj().decompress(self.compressed, n_bytes)
            return [Image(one) for one in np.frombuffer(pixels, np.uint8, n_bytes).reshape(shape)]
        except (ValueError, zlib.error):
            raise _damaged("the video", "the decoder failed") from None

    @property
    def image(self) -> Image:
        """First frame."""
        return self.images[0]


@dataclass(frozen=True, eq=False)
class Clip:
    """All frames of a video, for families with consecutive rows."""

    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Video:
    """Sampled frames of a file, in order."""

    seconds: float
    frames: tuple[Frame, ...]


_kept: FileCache[Frame] = FileCache(128 << 20)


def is_video(source: Any) -> bool:
    """True if a path or bytes begin like a supported video file."""
    try:
        if isinstance(source, (str, os.PathLike)):
            with Path(source).expanduser().open("rb") as file:
                return _format(file.read(12)) is not None
        return isinstance(source, (bytes, bytearray, memoryview)) and _format(bytes(source[:12])) is not None
    except (OSError, ValueError, RuntimeError):  # reported by `read_file`
        return False


def read_video(data: bytes, sampling: VideoSampling, name: str = "the video", *, deadline: float = math.inf) -> Video:
    """Return the frames of a video.

    Raise RequestError for unsupported, oversized or damaged videos, or if decoding does not finish before `deadline`
    (on the clock of time.monotonic).
    """
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"{name} is larger than {MAX_BYTES >> 20} MiB; send a shorter video",
            limit=MAX_BYTES,
        )
    format = _format(data[:12])
    if format is None:
        raise RequestError(f"{name} is not in a supported video format; expected {SUPPORTED}")
    digest = hashlib.blake2b(data, digest_size=32, key=sampling.name.encode()[:64], person=b"woolly video").digest()
    frames = _kept.find(digest)
    if frames is None:
        frames = _read(data, format, sampling, name, deadline)
        _kept.keep(digest, frames)
    return Video(frames[0].length, frames)


def _format(first: bytes) -> str | None:
    if first[4:8] == b"ftyp" and first[8:12] not in _STILL:
        return "mp4"
    return "matroska" if first[:4] == b"\x1a\x45\xdf\xa3" else None


def _read(data: bytes, format: str, sampling: VideoSampling, name: str, deadline: float) -> tuple[Frame, ...]:
    """Query duration and size in a subprocess, then decode the sampled frames in another."""
    packages = _packages(sampling)
    try:
        said, _ = _line(_run(data, {"format": format, "path": packages}, name, deadline, _MAX_HEADER_BYTES), 0)
        n_frames, rate, width, height = _measured(said, name)
        wanted = sampling.sample(n_frames, rate)
        height, width = sampling.resize(len(wanted), height, width)
        order = {"format": format, "path": packages, "wanted": wanted, "width": width, "height": height}
        order |= {"depth": sampling.temporal_patch_size, "uses_pillow": sampling.uses_pillow}
        most = (len(wanted) + sampling.temporal_patch_size) * (
            width * height * 3 + width * height // 64 + _MAX_HEADER_BYTES
        )
        written = _run(data, order, name, deadline, most)
        length = n_frames / rate
        like = Frame(0.0, width, height, b"", sampling.temporal_patch_size, length, len(wanted) / length)
        return _parsed(written, name, rate, like, len(wanted))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        # A malicious file may control the subprocess.
        raise _damaged(name, "the decoder failed") from None


def _packages(sampling: VideoSampling) -> list[str]:
    """Return the folders of the video reader, which is never imported into this process because of malicious files."""
    if sampling.uses_pillow:
        check_pillow()
    found = [find_spec(package) for package in (("av", "PIL") if sampling.uses_pillow else ("av",))]
    places = [
        str(Path(one.origin).absolute().parents[1]) for one in found if one is not None and one.origin is not None
    ]
    if len(places) < len(found):
        raise RequestError(f"videos need the package av: {install_command('video')}")
    if not can_start():
        raise RequestError("videos are decoded in a Python subprocess, which cannot be started here; send images")
    return sorted(set(places))


def _run(data: bytes, order: Mapping[str, Any], name: str, deadline: float, max_output_bytes: int) -> bytes:
    """Return the output of the subprocess."""
    written = run_decoder(
        *("video_child.py", {**order, "memory": _MEMORY, "seconds": _SECONDS}, data, _SLOTS),
        name=name,
        patience=_PATIENCE,
        deadline=deadline,
        max_output_bytes=max_output_bytes,
    )
    if written is None:
        raise RequestError(
            f"{name} is damaged, or takes more than {_SECONDS} s or {_MEMORY >> 30} GB to decode; send a"
            " shorter or smaller video"
        )
    return written


def _measured(head: Mapping[str, Any], name: str) -> tuple[int, float, int, int]:
    """Return number of frames, frame rate, width and height, checked against the limits."""
    if "fault" in head:
        raise _damaged(name, str(head["fault"]))
    n_frames, width, height = (int(head[key]) for key in ("n_frames", "width", "height"))
    rate = float(head["rate"])
    if n_frames < 1 or not 0.01 <= rate <= 1000 or min(width, height) < 1:
        raise _damaged(name, f"{n_frames} frames of {width} x {height} pixels, {rate} per second")
    if n_frames / rate > _MAX_SECONDS:
        raise RequestError(
            f"{name} has {n_frames / rate:.0f} s, but the limit is {_MAX_SECONDS} s; shorten it", limit=_MAX_SECONDS
        )
    if width * height > _MAX_PIXELS:
        raise RequestError(
            f"{name} has {width} x {height} pixels per frame, but the limit is {_MAX_PIXELS}; reduce the resolution",
            limit=_MAX_PIXELS,
        )
    return n_frames, rate, width, height


def _parsed(written: bytes, name: str, rate: float, like: Frame, n_wanted: int) -> tuple[Frame, ...]:
    """Parse the output of the subprocess."""
    frames: list[Frame] = []
    place = 0
    while len(frames) * like.temporal_patch_size < n_wanted:
        line, place = _line(written, place)
        if "fault" in line:
            raise _damaged(name, str(line["fault"]))
        if "end" in line:
            break
        compressed = written[place : place + line["bytes"]]
        place += line["bytes"]
        first, last = (int(line["numbers"][i]) / rate for i in (0, -1))
        frames.append(replace(like, seconds=(first + last) / 2, compressed=compressed))
    if not frames:
        raise _damaged(name, "no frames")
    return tuple(frames)


def _line(written: bytes, place: int) -> tuple[dict[str, Any], int]:
    end = written.index(b"\n", place)
    return json.loads(written[place:end]), end + 1


def _damaged(name: str, reason: str) -> RequestError:
    said = " ".join(reason.split())
    return RequestError(f"{name} is a damaged video ({said}); export it again, or send another file")
