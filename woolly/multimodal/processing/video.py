"""Video processors: frame sampling, frame sizes and encoder inputs of each family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal.processed_item import EncoderInput, ProcessedItem
from woolly.multimodal.processing import image_placeholders, process_image
from woolly.multimodal.processing.qwen import MAX_RATIO, max_pixels, smart_resize
from woolly.multimodal.processing.transforms import patchify
from woolly.multimodal.video import Clip, Frame, VideoSampling

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings

_SMOLVLM_FRAMES = 64  # maximum number of frames, at one per second
_SMOLVLM_SIDE = 1024  # side of a decoded frame: twice the input size of SmolVLM

_QWEN_FPS = 2.0
_QWEN_MIN_FRAMES, _QWEN_MAX_FRAMES = 4, 768
# Maximum pixels of all frames, from the checkpoints' configurations, and maximum rows per frame.
_QWEN_MIN_PIXELS, _QWEN_MAX_PIXELS = 4096, 25_165_824
_QWEN_MAX_ROWS = 768
# Minimum rows per frame, and maximum rows of all frame pairs, for Qwen 2 and 2.5. Files do not contain the positions
# per second of 2.5, which are 2 in all checkpoints.
_QWEN2_MIN_ROWS, _QWEN2_MAX_ROWS = 128, int(128_000 * 0.9)
_QWEN25_PER_SECOND = 2


def video_sampling(settings: VisionSettings, *, has_audio: bool = False) -> VideoSampling:
    """Return the video sampling of a family; raise RequestError if videos are not supported.

    Qwen 3 Omni uses the encoder of Qwen 3 VL, but interleaves audio with frames, so `has_audio` distinguishes the two.
    """
    if settings.projector == "idefics3":
        return SMOLVLM
    if settings.projector == "qwen3vl_merger" and not has_audio:
        side, most = settings.patch_size * settings.merge_size, max_pixels(settings)
        return VideoSampling(
            f"qwen3vl {side} {most}",
            _choose_qwen,
            partial(_fit_qwen, side, most),
            temporal_patch_size=2,
            uses_pillow=True,
        )
    if settings.projector in ("qwen2vl_merger", "qwen2.5vl_merger") and not has_audio:
        side, most = settings.patch_size * settings.merge_size, max_pixels(settings)
        fit = partial(_fit_qwen2, side, most)
        return VideoSampling(
            f"qwen2vl {side} {most}", _choose_qwen2, fit, temporal_patch_size=2, uses_pillow=True, is_one_item=True
        )
    kind = f"{settings.projector} with audio" if has_audio else settings.projector
    raise RequestError(
        f"models with a projector of type {kind} do not support videos (SmolVLM and Qwen 2 to 3.6 VL do); send"
        " frames as images"
    )


def count_frame_rows(frames: Sequence[Frame], settings: VisionSettings) -> int:
    """Return the number of encoder rows for the frames."""
    return sum(_measured(frame, settings) for frame in frames)


def _measured(frame: Frame, settings: VisionSettings) -> int:
    if frame.temporal_patch_size == 1:
        return image_placeholders((frame.height, frame.width), _single_tile(settings)).n_rows
    side = settings.patch_size * settings.merge_size
    return (frame.height // side) * (frame.width // side)


def process_frame(frame: Frame, settings: VisionSettings) -> ProcessedItem:
    """Return the encoder input of a frame, or of two frames as the two halves of each patch."""
    if frame.temporal_patch_size == 1:
        return process_image(frame.image, _single_tile(settings))
    return ProcessedItem.of("image", [_temporal_patches(frame, settings)], size=(frame.height, frame.width))


def process_clip(clip: Clip, settings: VisionSettings) -> ProcessedItem:
    """Return an item with an input and a time for each pair of frames.

    Times of Qwen 2.5 are seconds, independent of the frame rate; Qwen 2 counts the pairs.
    """
    inputs = [_temporal_patches(frame, settings) for frame in clip.frames]
    first, numbers = clip.frames[0], np.arange(len(inputs), dtype=np.float32)
    if settings.projector == "qwen2.5vl_merger":
        numbers *= np.float32(_QWEN25_PER_SECOND) * np.float32(
            first.temporal_patch_size / first.rate
        )  # f32, as in the processor
    frame_times = tuple(numbers.astype(np.int64).tolist())
    size = sum(frame.temporal_patch_size * frame.height for frame in clip.frames), first.width
    return ProcessedItem.of("image", inputs, size=size, frame_times=frame_times)


def _temporal_patches(frame: Frame, settings: VisionSettings) -> EncoderInput:
    inputs = [patchify(one.pixels, settings) for one in frame.images]
    _, height, width = inputs[0].grid_thw
    return EncoderInput(np.concatenate([one.values for one in inputs]), (len(inputs), height, width))


def _single_tile(settings: VisionSettings) -> VisionSettings:
    return replace(settings, preproc_image_size=settings.image_size)


def _choose_smolvlm(n_frames: int, rate: float) -> list[int]:
    """Sample one frame per second, evenly from the first to the last.

    The first and the last second of a long video are omitted.
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


SMOLVLM = VideoSampling("smolvlm", _choose_smolvlm, _fit_smolvlm)


def _choose_qwen(n_frames: int, rate: float) -> list[int]:
    """Sample two frames per second, evenly from the first to the last."""
    if n_frames < 2:
        raise RequestError("the video has one frame, but this model needs at least 2; send an image")
    n = min(max(int(n_frames / rate * _QWEN_FPS), _QWEN_MIN_FRAMES), _QWEN_MAX_FRAMES, n_frames)
    return [int(one) for one in np.linspace(0, n_frames - 1, n).round()]


def _choose_qwen2(n_frames: int, rate: float) -> list[int]:
    """Sample two frames per second in pairs, evenly from the first."""
    if n_frames < 2:
        raise RequestError("the video has one frame, but this model needs at least 2; send an image")
    n = min(max(n_frames / rate * _QWEN_FPS, _QWEN_MIN_FRAMES), _QWEN_MAX_FRAMES, n_frames)
    even = math.floor(n / 2) * 2
    step = n_frames / even
    return [int(np.float32(i * step)) for i in range(even)]  # f32, as in the processor


def _fit_qwen(side: int, max_frame_pixels: int, n: int, height: int, width: int) -> tuple[int, int]:
    """Return the sides as multiples of `side`, at nearly the same aspect ratio, within the limits for all frames."""
    of_frame = min(_QWEN_MAX_ROWS * side**2, max_frame_pixels, _QWEN_MAX_PIXELS // n)
    most = max(of_frame, int(_QWEN_MIN_PIXELS * 1.05)) * n
    if min(height, width) < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    _check_ratio(height, width)
    high, wide, even = round(height / side) * side, round(width / side) * side, round(n / 2) * 2
    if even * high * wide > most:
        shrink = math.sqrt(n * height * width / most)
        return max(side, math.floor(height / shrink / side) * side), max(side, math.floor(width / shrink / side) * side)
    if even * high * wide < _QWEN_MIN_PIXELS:
        grow = math.sqrt(_QWEN_MIN_PIXELS / (n * height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return high, wide


def _fit_qwen2(side: int, max_frame_pixels: int, n: int, height: int, width: int) -> tuple[int, int]:
    """Return the sides as multiples of `side`, with rows distributed equally over frames."""
    least = _QWEN2_MIN_ROWS * side**2
    share = min(_QWEN_MAX_ROWS * side**2, _QWEN2_MAX_ROWS * side**2 * 2 // n)
    _check_ratio(height, width)
    return smart_resize(height, width, side, least, min(max(share, int(least * 1.05)), max_frame_pixels))


def _check_ratio(height: int, width: int) -> None:
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RequestError(
            f"the video has {width} x {height} pixels, but the limit of the aspect ratio is {MAX_RATIO}; crop it"
        )
