"""Audio encoder of Gemma 4: two convolutions over time and frequency, a conformer with causal local attention."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.audio import log_mel_gemma
from woolly.multimodal.audio.chunks import HOP, split_sample_count, split_samples
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.encoder.clipped import clipped
from woolly.multimodal.encoder.exact_math import powers, product, sines
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.relative_positions import RelativeAttention, fourier_tensors, rotation_tensors
from woolly.multimodal.encoder.stage import StageBuilder, subsampling_filters
from woolly.multimodal.family import AudioFamily
from woolly.plan import Handle, Tracer
from woolly.plan.exact_math import exact_log

_EPS = 1e-6  # epsilon of all norms; some files have another value
_REACH = 12  # attention window: the row and the 11 rows before it
_CAP = 50.0  # logit softcap
_K_SCALE = exact_log(1 + math.e) / exact_log(2)


def _conv(p: Tracer, hp: AudioParams, number: int) -> None:
    """Build a 3 x 3 convolution of stride 2 with layer norm over channels."""
    name = f"a.conv1d.{number}"
    x = p.linear(p.input(width=p.columns_of(name)), name, width=p.rows(name))
    p.output(p.output_rows(p.unary(p.layer_norm(x, f"{name}.norm", eps=_EPS), "relu")), "embeddings", "none")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """Build the input projection, the conformer layers and the projector."""
    x = p.linear(p.input(width=p.columns_of("a.input_projection")), "a.input_projection", width=hp.width)
    relative = RelativeAttention(p, "a.rotations", hp.heads, _REACH)
    for i in range(hp.n_layers):
        with p.scope(f"a.blk.{i}"):
            x = feed_forward(p, x, hp, i, "")
            x = x + p.rms_norm(_attention(p, x, hp, i, relative), "attn_post_norm", eps=_EPS)
            x = x + conv_module(p, x, hp, i)
            x = p.rms_norm(feed_forward(p, x, hp, i, "_1"), "ln2", eps=_EPS)
    y = p.output_rows(x)
    if p.has("a.pre_encode.out"):
        y = p.linear(y, "a.pre_encode.out", width=p.rows("a.pre_encode.out"))
    y = p.rms_norm(y, "mm.a.soft_emb_norm" if p.has("mm.a.soft_emb_norm") else None, eps=_EPS)
    p.output(p.linear(y, "mm.a.input_projection", width=p.rows("mm.a.input_projection")), "embeddings", "none")


def feed_forward(p: Tracer, x: Handle, hp: AudioParams, layer: int, which: str) -> Handle:
    """Build a half-step feed-forward module with its residual."""
    begin = f"a.blk.{layer}.ffn"
    h = clipped(p, p.rms_norm(x, f"ffn_norm{which}", eps=_EPS), f"{begin}_up{which}", hp.tensors)
    h = clipped(p, p.unary(h, "silu"), f"{begin}_down{which}", hp.tensors)
    return x + p.rms_norm(h, f"ffn_post_norm{which}", eps=_EPS) * 0.5


def _attention(p: Tracer, x: Handle, hp: AudioParams, layer: int, relative: RelativeAttention) -> Handle:
    h = p.rms_norm(x, "attn_pre_norm", eps=_EPS)
    q, k, v = (clipped(p, h, f"a.blk.{layer}.attn_{one}", hp.tensors) for one in "qkv")
    q = q * (hp.head_dim**-0.5 / exact_log(2)) * p.vector("per_dim_scale")
    k = k * _K_SCALE
    k = k * p.vector("per_dim_k_scale") if p.has("per_dim_k_scale") else k
    a = relative.attention(q, k, v, "attn_waves", scale=1.0, softcap=_CAP)
    p.skip("attn_k_rel")
    return clipped(p, a, f"a.blk.{layer}.attn_out", hp.tensors)


def conv_module(p: Tracer, x: Handle, hp: AudioParams, layer: int) -> Handle:
    """Build the causal convolution module. GGUF swaps the names of its two norms."""
    h = clipped(p, p.rms_norm(x, "conv_norm", eps=_EPS), f"a.blk.{layer}.conv_pw1", hp.tensors)
    value, gate = p.split(h, h.width // 2, h.width // 2)
    kernel = p.columns_of("conv_dw")
    h = p.conv1d(value * p.unary(gate, "sigmoid"), "conv_dw", kernel=kernel, before=kernel - 1)
    h = p.unary(p.rms_norm(h, "norm_conv", eps=_EPS), "silu")
    return clipped(p, h, f"a.blk.{layer}.conv_pw2", hp.tensors)


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages: both convolutions, then the encoder."""
    convs = (StageBuilder(partial(_conv, number=i), (f"a.conv1d.{i}.",)) for i in (0, 1))
    return *convs, StageBuilder(_encoder, ("a.", "mm.a."))


def remake(hp: AudioParams) -> dict[str, Tensor]:
    """Convert relative positions to rope coefficients."""
    return relative_position_tensors(hp, _REACH, "attn_k_rel")


def relative_position_tensors(hp: AudioParams, reach: int, matrix: str) -> dict[str, Tensor]:
    """Return the rope coefficients of each layer's relative positions, for an attention window of `reach` rows."""
    # Check sizes before allocating: the width in the file is untrusted.
    names = [f"a.blk.{i}.{matrix}.weight" for i in range(hp.n_layers)]
    for name in names:
        if name not in hp.tensors or hp.tensors[name].shape != (hp.width, hp.width):
            raise ModelError(f"tensor {name} is missing, or not a matrix of {hp.width} x {hp.width}")
    half = hp.width // 2
    steps = powers(10000, [Fraction(-i, max(half - 1, 1)) for i in range(half)])
    waves = np.concatenate(sines(np.arange(reach)[:, None] * steps), axis=1)  # [distances, width]
    out = rotation_tensors("a.rotations", reach)
    for i, name in enumerate(names):
        weight = np.ascontiguousarray(hp.tensors[name].dequantize().T, np.float64)
        made_of = product(waves, weight).reshape(reach, hp.heads, -1)
        by_distance = np.zeros((hp.heads, 2 * reach - 1, hp.head_dim))
        by_distance[:, reach - 1 :] = made_of.swapaxes(0, 1)  # causal
        out |= fourier_tensors(f"a.blk.{i}.attn_waves", by_distance, hp.heads)
    return out


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices of the convolutions. Attention covers the latest rows."""
    times, n_freqs = grid[2], hp.settings.n_mels
    if not 0 < times <= hp.settings.family.max_frames:
        raise ValueError(f"a chunk has {times} frames; the maximum is {hp.settings.family.max_frames}")
    out = []
    for number in range(2):
        taps = subsampling_filters(times, n_freqs)
        out.append(PatchLayout(taps, np.arange(len(taps), dtype=np.int32), unit=1 if number == 0 else 0))
        times, n_freqs = conv_length(times), conv_length(n_freqs)
    rows = np.arange(times, dtype=np.int32)
    order = np.arange(times * n_freqs, dtype=np.int32).reshape(times, n_freqs)
    attn_ranges = np.stack([np.maximum(rows - _REACH + 1, 0), rows + 1], axis=1)
    return *out, PatchLayout(order, rows, attn_ranges=attn_ranges)


def chunk_frames(n_samples: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames of each 30 s."""
    return [(n - 1) // HOP for n in split_sample_count(n_samples)]


FAMILIES = (
    AudioFamily(
        name="gemma4a",
        begin="<|audio>",
        end="<audio|>",
        placeholder_texts=("<|audio|>",),
        max_frames=2999,
        rows=lambda n, settings: conv_length(n, 2),
        chunks=partial(split_samples, log_mel=log_mel_gemma),
        chunk_frames=chunk_frames,
        stages=stages,
        patch_layout=patch_layout,
        remake=remake,
    ),
)
