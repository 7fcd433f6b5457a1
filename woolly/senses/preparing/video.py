"""Frames of videos: which ones the processor of a family takes, in what size, and what a tower reads of them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from woolly.errors import RequestError
from woolly.senses.prepared import Piece, Prepared
from woolly.senses.preparing import measure, prepare
from woolly.senses.preparing.pixels import piece_of
from woolly.senses.preparing.qwen import MOST_RATIO, most_pixels
from woolly.senses.settings import TowerSettings
from woolly.senses.video import Frame, Showing

__all__ = ["SMOLVLM", "measure_frame", "prepare_frame", "showing_of"]

_SMOLVLM_FRAMES = 64  # at most, one of a second
_SMOLVLM_SIDE = 1024  # of a frame as it is handed on: twice what SmolVLM reads

_QWEN_FPS = 2.0
_QWEN_LEAST_FRAMES, _QWEN_MOST_FRAMES = 4, 768
# Pixels of all frames, as the checkpoints' configurations have them, and rows of one frame at most.
_QWEN_LEAST_PIXELS, _QWEN_MOST_PIXELS = 4096, 25_165_824
_QWEN_MOST_ROWS = 768


def showing_of(settings: TowerSettings, *, hears: bool = False) -> Showing:
    """Returns how a family sees videos; RequestError if it takes them in a form that is not known here, or not at all.

    Qwen 3 Omni has the tower of Qwen 3 VL, but lays sound among the frames: `hears` tells them apart.
    """
    if settings.projector == "idefics3":
        return SMOLVLM
    if settings.projector == "qwen3vl_merger" and not hears:
        side, most = settings.patch_size * settings.merge, most_pixels(settings)
        return Showing(f"qwen3vl {side} {most}", _choose_qwen, partial(_fit_qwen, side, most), depth=2, by_pillow=True)
    kind = f"{settings.projector} that also hear" if hears else settings.projector
    raise RequestError(
        f"videos are taken by SmolVLM, Qwen 3 VL, 3.5 and 3.6, not by models with a projector of type {kind}; send"
        " frames as pictures"
    )


def measure_frame(frame: Frame, settings: TowerSettings) -> int:
    """Returns the rows that frames become."""
    if frame.depth == 1:
        return measure((frame.height, frame.width), _one_tile(settings)).n_rows
    side = settings.patch_size * settings.merge
    return (frame.height // side) * (frame.width // side)


def prepare_frame(frame: Frame, settings: TowerSettings) -> Prepared:
    """Returns frames as the tower reads them: one as a picture, two as both halves of one piece's patches."""
    if frame.depth == 1:
        return prepare(frame.picture, _one_tile(settings))
    pieces = [piece_of(one.pixels, settings) for one in frame.pictures]
    _, height, width = pieces[0].grid
    both = Piece(np.concatenate([one.values for one in pieces]), (len(pieces), height, width))
    return Prepared.of("image", [both], size=(frame.height, frame.width))


def _one_tile(settings: TowerSettings) -> TowerSettings:
    return replace(settings, preproc_image_size=settings.image_size)


def _choose_smolvlm(n_frames: int, rate: float) -> list[int]:
    """Returns one frame of a second, evenly from the first to the last.

    The first and the last second of a long video are left out.
    """
    seconds = n_frames / rate
    n = max(1, min(round(seconds), _SMOLVLM_FRAMES))
    first, last = 0, n_frames - 1
    if seconds - 2 > _SMOLVLM_FRAMES:
        first, last = int(rate), min(int(n_frames - rate), last)
    if first >= last:
        first, last = 0, n_frames - 1
    step = (last - first) / max(n - 1, 1)
    return sorted({int(first + i * step) for i in range(n - 1)} | {last if n > 1 else first})


def _fit_smolvlm(n: int, height: int, width: int) -> tuple[int, int]:
    scale = min(1.0, _SMOLVLM_SIDE / max(width, height))
    return max(1, round(height * scale)), max(1, round(width * scale))


SMOLVLM = Showing("smolvlm", _choose_smolvlm, _fit_smolvlm)


def _choose_qwen(n_frames: int, rate: float) -> list[int]:
    """Returns two frames of a second, evenly from the first to the last."""
    if n_frames < 2:
        raise RequestError("the video has one frame, and this model takes at least 2; send it as a picture")
    n = min(max(int(n_frames / rate * _QWEN_FPS), _QWEN_LEAST_FRAMES), _QWEN_MOST_FRAMES, n_frames)
    return [int(one) for one in np.linspace(0, n_frames - 1, n).round()]


def _fit_qwen(side: int, most_of_frame: int, n: int, height: int, width: int) -> tuple[int, int]:
    """Returns the sides as multiples of `side`, in nearly the same ratio, so that all frames keep to the limits."""
    of_frame = min(_QWEN_MOST_ROWS * side**2, most_of_frame, _QWEN_MOST_PIXELS // n)
    most = max(of_frame, int(_QWEN_LEAST_PIXELS * 1.05)) * n
    if min(height, width) < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) > MOST_RATIO * min(height, width):
        raise RequestError(
            f"the video has {width} x {height} pixels, and this model takes sides of at most 1 to {MOST_RATIO}; cut it"
        )
    high, wide, even = round(height / side) * side, round(width / side) * side, round(n / 2) * 2
    if even * high * wide > most:
        shrink = math.sqrt(n * height * width / most)
        return max(side, math.floor(height / shrink / side) * side), max(side, math.floor(width / shrink / side) * side)
    if even * high * wide < _QWEN_LEAST_PIXELS:
        grow = math.sqrt(_QWEN_LEAST_PIXELS / (n * height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return high, wide
