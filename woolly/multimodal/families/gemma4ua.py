"""Gemma 4 12B: 40 ms of samples are a row, with a norm and a matrix, but without an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.multimodal.audio.chunks import Float32, split_count
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.family import AudioFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from woolly.multimodal.audio import Audio
    from woolly.multimodal.audio.settings import AudioSettings
    from woolly.multimodal.encoder.params import AudioParams
    from woolly.plan import Tracer

_FRAME = 640  # samples: 40 ms
_EPS = 1e-6  # epsilon of the norm; files have another value


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield 30 s chunks of samples, the last padded with silence to a whole frame."""
    padded = np.pad(audio.samples, (0, -len(audio.samples) % _FRAME)).astype(np.float32).reshape(-1, _FRAME)
    most = settings.family.max_frames
    yield from (padded[first : first + most] for first in range(0, len(padded), most))


def _project(p: Tracer, hp: AudioParams) -> None:
    x = p.rms_norm(p.output_rows(p.input(width=_FRAME)), eps=_EPS)
    p.output(p.linear(x, "mm.a.input_projection", width=p.rows("mm.a.input_projection")), "embeddings", "none")


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout]:
    """Return the frames in order."""
    order = np.arange(grid[2], dtype=np.int32)
    return (PatchLayout(order, order),)


FAMILIES = (
    AudioFamily(
        name="gemma4ua",
        begin="<|audio>",
        end="<audio|>",
        placeholder_texts=("<|audio|>",),
        frame_size=_FRAME,
        max_frames=750,
        rows=lambda n, settings: n,
        chunks=chunks,
        chunk_frames=lambda n_samples, settings: split_count(-(-n_samples // _FRAME), settings),
        stages=lambda hp: (StageBuilder(_project, ("mm.a.",)),),
        patch_layout=patch_layout,
    ),
)
