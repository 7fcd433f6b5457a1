"""Qwen 3 Omni and Qwen 3 ASR: three 2D convolutions over chunks of 1 s, a transformer over 8 s.

Rows of the convolutions are (time, frequency) positions; columns are channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from woolly.multimodal.audio import Audio, log_mel_whisper
from woolly.multimodal.audio.chunks import HOP, Float32, split_count, split_frames
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder, filter_rows
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.family import AudioFamily
from woolly.plan import Tracer

_CHUNK = 100  # mel frames per convolution chunk
_TAPS = 9

Int32 = npt.NDArray[np.int32]


def _first_conv(p: Tracer, hp: AudioParams) -> None:
    """Build the first convolution."""
    _conv(p, 1, 1)


def _second_conv(p: Tracer, hp: AudioParams) -> None:
    """Build the second convolution."""
    _conv(p, 2, p.rows("a.conv2d.2"))


def _third_conv(p: Tracer, hp: AudioParams) -> None:
    """Build the third convolution."""
    _conv(p, 3, p.rows("a.conv2d.3"))


def _conv(p: Tracer, number: int, channels: int) -> None:
    name = f"a.conv2d.{number}"
    x = p.unary(p.linear(p.input(width=_TAPS * channels), name, width=p.rows(name)), "gelu_erf")
    p.output(p.output_rows(x), "embeddings", "none")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """Build the input projection, the layers and the projector."""
    x = p.embedding_bag(
        p.linear(p.input(width=p.columns_of("a.conv_out")), "a.conv_out", width=hp.width), "a.position_embd"
    )
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf", tower="a")
    y = p.output_rows(p.layer_norm(x, "a.post_ln", eps=hp.eps))
    p.output(mlp(p, y, "mm.a.mlp.1", "mm.a.mlp.2"), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages: three convolutions, then the encoder."""
    convs = (_first_conv, _second_conv, _third_conv)
    own = (StageBuilder(build, (f"a.conv2d.{i}.",)) for i, build in enumerate(convs, 1))
    return *own, StageBuilder(_encoder, ("a.", "mm.a."))


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices per chunk. The last chunk is zero-padded, and its padded frames are dropped."""
    n, n_mels = grid[2], hp.settings.n_mels
    if not 0 < n <= hp.settings.family.max_frames:
        raise ValueError(f"a chunk has {n} frames; the maximum is {hp.settings.family.max_frames}")
    n_chunks, times, n_freqs = -(-n // _CHUNK), _CHUNK, n_mels
    out = []
    for number in range(3):
        taps = _filters(n_chunks, times, n_freqs)
        if number == 0:
            taps[taps >= n * n_mels] = -1
        out.append(PatchLayout(taps, np.arange(len(taps), dtype=np.int32), unit=1 if number == 0 else 0))
        times, n_freqs = conv_length(times), conv_length(n_freqs)
    chunk, time = np.divmod(np.arange(n_chunks * times), times)
    is_own = time < np.array([conv_length(min(_CHUNK, n - _CHUNK * i), 3) for i in range(n_chunks)])[chunk]
    order = np.arange(n_chunks * times * n_freqs, dtype=np.int32).reshape(-1, n_freqs)[is_own]
    gather_rows = time[is_own].astype(np.int32)[:, None]
    ones = np.ones((len(order), 1), np.float32)
    return *out, PatchLayout(order, np.arange(len(order), dtype=np.int32), gather_rows=gather_rows, gather_weights=ones)


def _filters(n_chunks: int, times: int, n_freqs: int) -> Int32:
    """Return the input positions of each 3 x 3 filter of stride 2, [n, 9], frequency-major; -1 is padding."""
    by_time = filter_rows(range(0, times, 2), 0, times)  # [times', 3]
    by_freq = filter_rows(range(0, n_freqs, 2), 0, n_freqs)
    at = by_time[:, None, None, :] * n_freqs + by_freq[None, :, :, None]  # [times', n_freqs', freq, time]
    at[np.broadcast_to((by_time[:, None, None, :] < 0) | (by_freq[None, :, :, None] < 0), at.shape)] = -1
    at = at.reshape(1, -1, _TAPS)
    chunks = np.arange(n_chunks)[:, None, None] * (times * n_freqs)
    return np.where(at < 0, -1, at + chunks).reshape(-1, _TAPS).astype(np.int32)


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks without padding. Attention stays within a chunk."""
    yield from split_frames(log_mel_whisper(audio.samples, settings.n_mels), settings)


FAMILIES = (
    AudioFamily(
        name="qwen3a",
        begin="<|audio_start|>",
        end="<|audio_end|>",
        placeholder_texts=("<|audio_start|><|audio_pad|><|audio_end|>", "<|audio_pad|>"),
        max_frames=800,
        rows=lambda n, settings: n // 100 * 13 + conv_length(n % 100, 3),
        chunks=chunks,
        chunk_frames=lambda n_samples, settings: split_count(n_samples // HOP, settings),
        stages=stages,
        patch_layout=patch_layout,
    ),
)
