"""Processed image or audio clip: encoder inputs and a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Modality = Literal["image", "audio", "text"]


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """Input of an encoder: an image, a tile, a group of video frames, an audio chunk or a text.

    Each row of `values` is a resized, normalized patch: red values line by line, then green, then blue. Patches are in
    raster order. A still image has one frame, a video input two. An audio row is a frame of the spectrogram, with the
    grid (1, 1, frames). A text row is a token id, with the grid (1, 1, tokens).
    """

    values: npt.NDArray[np.float32] = field(repr=False)  # [n_patches, 3 * patch_size ** 2]
    grid_thw: tuple[int, int, int]  # frames, height and width, in patches

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.float32 or len(self.values) != np.prod(self.grid_thw):
            raise ValueError(
                f"input with grid {self.grid_thw} has {self.values.dtype} values of shape {self.values.shape}; expected"
                " float32 with one row per patch"
            )


@dataclass(frozen=True, eq=False)
class ProcessedItem:
    """Encoder inputs in the order of their placeholders in the prompt. `ProcessedItem.of` computes the digest."""

    kind: Modality
    inputs: tuple[EncoderInput, ...]
    # Digest of all data that affects encoder and layout; equal digests mean equal rows.
    digest: bytes
    # Rows and columns of tiles; (0, 0) if untiled. An overview is an additional input.
    tiles: tuple[int, int] = (0, 0)
    size: tuple[int, int] = (0, 0)  # height and width of the original image in pixels
    seconds: float = 0.0  # duration of the audio
    frame_times: tuple[int, ...] = ()  # M-RoPE time positions of a video with an input per group of frames

    @classmethod
    def of(
        cls,
        kind: Modality,
        inputs: Sequence[EncoderInput],
        *,
        tiles: tuple[int, int] = (0, 0),
        size: tuple[int, int] = (0, 0),
        frame_times: tuple[int, ...] = (),
    ) -> ProcessedItem:
        """Return an item with the digest of its inputs."""
        head = (kind, tiles, size, frame_times) if frame_times else (kind, tiles, size)
        hashed = hashlib.blake2b(repr(head).encode(), digest_size=32, person=b"woolly prepared")
        for encoder_input in inputs:
            hashed.update(repr((encoder_input.grid_thw, encoder_input.values.shape)).encode())
            hashed.update(np.ascontiguousarray(encoder_input.values).data)
        return cls(kind, tuple(inputs), hashed.digest(), tiles, size, frame_times=frame_times)
