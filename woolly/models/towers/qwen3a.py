"""Qwen 3 Omni and Qwen 3 ASR: three convolutions over time and pitch in chunks of 1 s, a transformer over 8 s.

Rows of the convolutions are places of time and pitch; all channels of one are its columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.models.towers.arrangement import Arrangement, Grid
from woolly.models.towers.params import AudioParams
from woolly.models.towers.stage import StageBuilder, filter_rows
from woolly.models.towers.vit import layer, mlp
from woolly.multimodal.audio.settings import conv_length
from woolly.plan import Tracer

PROJECTORS = ("qwen3a",)

_CHUNK = 100  # frames that filters do not leave
_TAPS = 9

Int32 = npt.NDArray[np.int32]


def _first_conv(p: Tracer, hp: AudioParams) -> None:
    """Nine numbers of the spectrogram."""
    _conv(p, 1, 1)


def _second_conv(p: Tracer, hp: AudioParams) -> None:
    """Nine places of the first."""
    _conv(p, 2, p.rows("a.conv2d.2"))


def _third_conv(p: Tracer, hp: AudioParams) -> None:
    """Nine places of the second."""
    _conv(p, 3, p.rows("a.conv2d.3"))


def _conv(p: Tracer, number: int, channels: int) -> None:
    name = f"a.conv2d.{number}"
    x = p.act(p.linear(p.given(width=_TAPS * channels), name, width=p.rows(name)), "gelu_erf")
    p.output(p.output_rows(x), "embeddings", "none")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """All pitches of a time side by side, and all layers."""
    x = p.blend(p.linear(p.given(width=p.columns_of("a.conv_out")), "a.conv_out", width=hp.width), "a.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf", tower="a")
    y = p.output_rows(p.layer_norm(x, "a.post_ln", eps=hp.eps))
    p.output(mlp(p, y, "mm.a.mlp.1", "mm.a.mlp.2"), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Each convolution is a stage."""
    convs = (_first_conv, _second_conv, _third_conv)
    own = (StageBuilder(build, (f"a.conv2d.{i}.",)) for i, build in enumerate(convs, 1))
    return *own, StageBuilder(_encoder, ("a.", "mm.a."))


def arrange(hp: AudioParams, grid: Grid) -> tuple[Arrangement, ...]:
    """Places by chunk, time and pitch. A last chunk is filled up with zeros, and only its own times go on."""
    n, n_mels = grid[2], hp.settings.n_mels
    if not 0 < n <= hp.settings.family.max_frames:
        raise ValueError(f"a piece has {n} frames, and the tower hears up to {hp.settings.family.max_frames}")
    n_chunks, times, pitches = -(-n // _CHUNK), _CHUNK, n_mels
    out = []
    for number in range(3):
        taps = _filters(n_chunks, times, pitches)
        if number == 0:
            taps[taps >= n * n_mels] = -1
        out.append(Arrangement(taps, np.arange(len(taps), dtype=np.int32), unit=1 if number == 0 else 0))
        times, pitches = conv_length(times), conv_length(pitches)
    chunk, time = np.divmod(np.arange(n_chunks * times), times)
    is_own = time < np.array([conv_length(min(_CHUNK, n - _CHUNK * i), 3) for i in range(n_chunks)])[chunk]
    order = np.arange(n_chunks * times * pitches, dtype=np.int32).reshape(-1, pitches)[is_own]
    places = time[is_own].astype(np.int32)[:, None]
    ones = np.ones((len(order), 1), np.float32)
    return *out, Arrangement(order, np.arange(len(order), dtype=np.int32), places=places, shares=ones)


def _filters(n_chunks: int, times: int, pitches: int) -> Int32:
    """[n, 9]: what filters of stride 2 cover, pitch before time, as the weights of a file stand."""
    by_time = filter_rows(range(0, times, 2), 0, times)  # [times', 3]
    by_pitch = filter_rows(range(0, pitches, 2), 0, pitches)
    at = by_time[:, None, None, :] * pitches + by_pitch[None, :, :, None]  # [times', pitches', pitch, time]
    at[np.broadcast_to((by_time[:, None, None, :] < 0) | (by_pitch[None, :, :, None] < 0), at.shape)] = -1
    at = at.reshape(1, -1, _TAPS)
    chunks = np.arange(n_chunks)[:, None, None] * (times * pitches)
    return np.where(at < 0, -1, at + chunks).reshape(-1, _TAPS).astype(np.int32)
