"""The Prepared: an image or an audio clip as the tower of a model reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["image", "audio", "text"]


@dataclass(frozen=True, eq=False)
class Piece:
    """What one run of a tower reads: a whole image, or a tile of it.

    A row of `values` is a patch, resized and normalized: its red values line by line, then green, then blue. Patches
    come line by line, from left to right; a tower that wants another order arranges them itself. A still image has
    one frame, also for towers whose patches are two frames deep; of a video, a piece has both, one after the other. For
    audio, a row is a frame of the spectrogram, and the grid is (1, 1, frames). For encoder text, a row is a token id,
    and the grid is (1, 1, tokens).
    """

    values: npt.NDArray[np.float32] = field(repr=False)  # [n_patches, 3 * patch_size ** 2]
    grid: tuple[int, int, int]  # frames, height and width, in patches

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.float32 or len(self.values) != np.prod(self.grid):
            raise ValueError(
                f"a piece with the grid {self.grid} got {self.values.dtype} of shape {self.values.shape}; float32 with"
                " a row for each patch was expected"
            )


@dataclass(frozen=True, eq=False)
class Prepared:
    """Pieces in the order in which they come into the prompt. `Prepared.of` makes the digest."""

    kind: Kind
    pieces: tuple[Piece, ...]
    # Equal for what gives equal rows: a digest of all that a tower and a layout read.
    digest: bytes
    # Lines and columns of tiles; (0, 0): the image is whole. An overview is one more piece.
    tiles: tuple[int, int] = (0, 0)
    size: tuple[int, int] = (0, 0)  # height and width of the image in pixels, before it was prepared
    seconds: float = 0.0  # length of the audio, before it was prepared
    moments: tuple[int, ...] = ()  # of a video whose pieces are its frames: what rows of each turn by in time

    @classmethod
    def of(
        cls,
        kind: Kind,
        pieces: Sequence[Piece],
        *,
        tiles: tuple[int, int] = (0, 0),
        size: tuple[int, int] = (0, 0),
        moments: tuple[int, ...] = (),
    ) -> Prepared:
        """Pieces with their digest."""
        head = (kind, tiles, size, moments) if moments else (kind, tiles, size)
        hashed = hashlib.blake2b(repr(head).encode(), digest_size=32, person=b"woolly prepared")
        for piece in pieces:
            hashed.update(repr((piece.grid, piece.values.shape)).encode())
            hashed.update(np.ascontiguousarray(piece.values).data)
        return cls(kind, tuple(pieces), hashed.digest(), tiles, size, moments=moments)
