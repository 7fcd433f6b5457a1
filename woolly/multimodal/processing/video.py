"""Video processors: sampling of a family, and encoder inputs of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal.processed_item import EncoderInput, ProcessedItem
from woolly.multimodal.processing import image_placeholders, process_image
from woolly.multimodal.processing.transforms import patchify
from woolly.multimodal.video import Clip, Frame, VideoSampling

if TYPE_CHECKING:
    from woolly.multimodal.vision_settings import VisionSettings


def video_sampling(settings: VisionSettings, *, has_audio: bool = False) -> VideoSampling:
    """Return the video sampling of a family; raise RequestError if videos are not supported.

    Qwen 3 Omni uses the encoder of Qwen 3 VL, but interleaves audio with frames, so `has_audio` distinguishes the two.
    """
    if settings.family.video is not None and not has_audio:
        return settings.family.video(settings)
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
    if per_second := settings.family.positions_per_second:
        numbers *= np.float32(per_second) * np.float32(
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
