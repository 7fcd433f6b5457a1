"""The Video: some frames of a file as pictures, with their times.

FFmpeg reads the file, in a child process with limits, as pdfium reads PDF files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import zlib
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from woolly.errors import RequestError
from woolly.machine.child import can_start
from woolly.machine.extra import how_to_add
from woolly.senses.format import MOST_BYTES
from woolly.senses.pdf import Kept
from woolly.senses.picture import Picture
from woolly.senses.settings import TowerSettings
from woolly.senses.turn import run_in_turn

__all__ = ["Frame", "Video", "frame_settings", "is_video", "read_video"]

TAKEN = "MP4, MOV, WebM or MKV"
_FPS = 1.0  # frames of a second that are shown, and the most of them, as SmolVLM's processor has it
_MOST_FRAMES = 64
_MOST_SECONDS = 600
_MOST_PIXELS = 4096 * 2304  # of a frame
_MOST_SIDE = 1024  # of a frame as it is handed on: twice what SmolVLM reads
_MOST_OUTPUT = _MOST_FRAMES * (_MOST_SIDE + 64) ** 2 * 3  # bytes: of frames that nothing compresses

_MEMORY = 2 << 30
_SECONDS = 60  # of processor time: ten minutes of 1080p at 200 frames per second
_PATIENCE = 180.0
_SLOTS = threading.BoundedSemaphore(1)

# The brands of pictures, whose files begin as videos do.
_STILL = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1", b"M4A ")


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame as it was read."""

    seconds: float  # from the beginning
    width: int
    height: int
    packed: bytes = field(repr=False)
    length: float = 0.0  # seconds of the video
    text: str = ""

    @property
    def picture(self) -> Picture:
        """The frame."""
        n_bytes = self.width * self.height * 3
        pixels = zlib.decompressobj().decompress(self.packed, n_bytes)
        return Picture(np.frombuffer(pixels, np.uint8, n_bytes).reshape(self.height, self.width, 3))


@dataclass(frozen=True)
class Video:
    """Frames of a file, in order."""

    seconds: float
    frames: tuple[Frame, ...]


_kept: Kept[Frame] = Kept(128 << 20)


def frame_settings(settings: TowerSettings) -> TowerSettings:
    """Returns how frames are prepared; RequestError if the family takes videos in another form, or none."""
    if settings.projector != "idefics3":
        raise RequestError(
            f"videos are taken by SmolVLM alone, not by models with a projector of type {settings.projector}; send"
            " frames as pictures"
        )
    return replace(settings, preproc_image_size=settings.image_size)  # one tile


def is_video(source: Any) -> bool:
    """Whether a path or the bytes of a file are those of a video that is taken, by its first bytes."""
    try:
        if isinstance(source, (str, os.PathLike)):
            with Path(source).expanduser().open("rb") as file:
                return _format(file.read(12)) is not None
        return isinstance(source, (bytes, bytearray, memoryview)) and _format(bytes(source[:12])) is not None
    except (OSError, ValueError, RuntimeError):  # who reads it all says why it cannot be read
        return False


def read_video(data: bytes, name: str = "the video", *, deadline: float = math.inf) -> Video:
    """Returns a video.

    RequestError if it is none, damaged, too long, too large or too costly, or not read at `deadline`, by
    time.monotonic().
    """
    if len(data) > MOST_BYTES:
        raise RequestError(
            f"{name} has more than {MOST_BYTES >> 20} MiB, which is the most that is taken; send a shorter one",
            limit=MOST_BYTES,
        )
    format = _format(data[:12])
    if format is None:
        raise RequestError(f"{name} is no video of a known format; {TAKEN} was expected")
    digest = hashlib.blake2b(data, digest_size=32, person=b"woolly video").digest()
    frames = _kept.find(digest)
    if frames is None:
        frames = _read(data, format, name, deadline)
        _kept.keep(digest, frames)
    return Video(frames[0].length, frames)


def _format(first: bytes) -> str | None:
    if first[4:8] == b"ftyp" and first[8:12] not in _STILL:
        return "mp4"
    return "matroska" if first[:4] == b"\x1a\x45\xdf\xa3" else None


def _read(data: bytes, format: str, name: str, deadline: float) -> tuple[Frame, ...]:
    found = find_spec("av")
    if found is None or found.origin is None:
        raise RequestError(f"videos need the package av: {how_to_add('video')}")
    if not can_start():
        raise RequestError("videos are read by a process of Python, which cannot be started here; send pictures")
    order = {
        "memory": _MEMORY,
        "seconds": _SECONDS,
        "path": [str(Path(found.origin).absolute().parents[1])],
        "format": format,
        "fps": _FPS,
        "most_frames": _MOST_FRAMES,
        "most_seconds": _MOST_SECONDS,
        "most_pixels": _MOST_PIXELS,
        "most_side": _MOST_SIDE,
    }
    written = run_in_turn(
        *("video_child.py", order, data, _SLOTS),
        name=name,
        patience=_PATIENCE,
        deadline=deadline,
        most_output=_MOST_OUTPUT,
    )
    if written is None:
        raise RequestError(
            f"{name} is damaged, or too costly to read: {_SECONDS} s and {_MEMORY >> 30} GB are the limits; send a"
            " shorter or smaller one"
        )
    try:
        return _parsed(written, name)
    except (ValueError, LookupError, TypeError, AttributeError):  # the file took over what reads it, perhaps
        raise _damaged(name, "what reads it failed") from None


def _parsed(written: bytes, name: str) -> tuple[Frame, ...]:
    head, place = _line(written, 0)
    if "fault" in head:
        raise _damaged(name, head["fault"])
    if head["seconds"] > _MOST_SECONDS:
        raise RequestError(
            f"{name} has {head['seconds']:.0f} s, and at most {_MOST_SECONDS} are taken; cut it", limit=_MOST_SECONDS
        )
    if head["width"] * head["height"] > _MOST_PIXELS:
        raise RequestError(
            f"{name} has frames of {head['width']} x {head['height']} pixels, and at most {_MOST_PIXELS} are taken;"
            " send a smaller one",
            limit=_MOST_PIXELS,
        )
    frames: list[Frame] = []
    while place < len(written):
        line, place = _line(written, place)
        if "fault" in line:
            raise _damaged(name, line["fault"])
        if "end" in line:
            break
        packed = written[place : place + line["bytes"]]
        place += line["bytes"]
        frames.append(Frame(line["time"], line["width"], line["height"], packed, head["seconds"]))
    if not frames:
        raise _damaged(name, "no frames")
    return tuple(frames)


def _line(written: bytes, place: int) -> tuple[dict[str, Any], int]:
    end = written.index(b"\n", place)
    return json.loads(written[place:end]), end + 1


def _damaged(name: str, reason: str) -> RequestError:
    said = " ".join(reason.split())
    return RequestError(f"{name} is a damaged video ({said}); send it again, or another one")
