"""FastConformer encoder of LFM2 Audio and Parakeet: 8x subsampling, conformer layers with relative positions.

Tensor names follow GGUF projectors.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.audio.settings import conv_length
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder, subsampling_filters
from woolly.plan import Handle, Rope, Tracer

_TAPS = 9
_EACH = ((2, 3), (5, 6))  # depthwise and pointwise convolution of each block
_BATCH_EPS = 1e-5  # epsilon of batch norm


def _first_conv(p: Tracer, hp: AudioParams) -> None:
    """Build the first convolution, 3 x 3 over the spectrogram."""
    x = p.linear(p.input(width=_TAPS), "a.conv1d.0", width=p.rows("a.conv1d.0"))
    p.output(p.output_rows(p.unary(x, "relu")), "embeddings", "none")


def _conv(p: Tracer, hp: AudioParams, each: int, mixed: int) -> None:
    """Build a depthwise-separable 3 x 3 convolution."""
    channels = p.rows(f"a.conv1d.{mixed}")
    taps = p.input(width=_TAPS * channels) * p.vector(f"a.conv1d.{each}")
    x = p.slice(taps, first=0, width=channels)
    for i in range(1, _TAPS):
        x = x + p.slice(taps, first=i * channels, width=channels)
    x = p.linear(x + p.vector(f"a.conv1d.{each}.bias"), f"a.conv1d.{mixed}", width=channels)
    p.output(p.output_rows(p.unary(x, "relu")), "embeddings", "none")


def subsampling() -> tuple[StageBuilder, ...]:
    """Return the subsampling stages: three convolutions of stride 2."""
    later = (
        StageBuilder(partial(_conv, each=each, mixed=mixed), (f"a.conv1d.{each}.", f"a.conv1d.{mixed}."))
        for each, mixed in _EACH
    )
    return StageBuilder(_first_conv, ("a.conv1d.0.",)), *later


def conformer(p: Tracer, hp: AudioParams, *, scale: float = 1.0) -> Handle:
    """Build the input projection, scaled by `scale`, and the conformer layers."""
    x = p.linear(p.input(width=p.columns_of("a.pre_encode.out")), "a.pre_encode.out", width=hp.width)
    x = x if scale == 1.0 else x * scale
    rope = Rope(hp.width, hp.width, 10000.0, "neox")
    keys = p.rope(p.slice(x, first=0, width=hp.width) * 0.0 + p.vector("a.waves"), rope)
    for i in range(hp.n_layers):
        with p.scope(f"a.blk.{i}"):
            x = x + _feed_forward(p, x, hp, "") * 0.5
            x = x + _attention(p, p.layer_norm(x, "ln1", eps=hp.eps), hp, keys, rope)
            x = x + _conv_module(p, x, hp)
            x = p.layer_norm(x + _feed_forward(p, x, hp, "_1") * 0.5, "ln2", eps=hp.eps)
    return x


def _feed_forward(p: Tracer, x: Handle, hp: AudioParams, which: str) -> Handle:
    h = p.linear(p.layer_norm(x, f"ffn_norm{which}", eps=hp.eps), f"ffn_up{which}", width=p.rows(f"ffn_up{which}"))
    return p.linear(p.unary(h, "silu"), f"ffn_down{which}", width=hp.width)


def _attention(p: Tracer, h: Handle, hp: AudioParams, keys: Handle, rope: Rope) -> Handle:
    """Build attention with relative positions (Transformer-XL).

    A sinusoid of a distance is a product of sinusoids of two positions, so rope rotates the coefficients of q and
    `keys`.
    """
    q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
    waves = p.per_head_linear(q + p.vector("pos_bias_v"), "attn_waves", heads=hp.heads, width=hp.width)
    p.skip("linear_pos")
    q = p.concat(q + p.vector("pos_bias_u"), p.rope(waves, rope), heads=hp.heads)
    k = p.concat(k, keys, heads=hp.heads, shared=True)
    a = p.attention(q, k, v, head_dim=q.width // hp.heads, scale=hp.head_dim**-0.5, mask="all")
    return p.linear(a, "attn_out", width=hp.width)


def _conv_module(p: Tracer, x: Handle, hp: AudioParams) -> Handle:
    """Build the convolution module: GLU, depthwise convolution with folded batch norm, SiLU."""
    h, inner = p.layer_norm(x, "norm_conv", eps=hp.eps), p.rows("conv_pw1") // 2
    value, gate = (p.linear(h, "conv_pw1", width=inner, first=first) for first in (0, inner))
    kernel = p.columns_of("conv_dw")
    h = p.conv1d(value * p.unary(gate, "sigmoid"), "conv_dw", kernel=kernel, before=kernel // 2, act="silu")
    p.skip("conv_norm")
    return p.linear(h, "conv_pw2", width=hp.width)


def remake_conformer(hp: AudioParams) -> dict[str, Tensor]:
    """Reorder filters, fold batch norm into them, and convert position matrices to rope coefficients."""
    out = {}
    for each, _ in _EACH:
        name = f"a.conv1d.{each}.weight"
        out[name] = f32_tensor(name, _array(hp, name, _TAPS).T.reshape(-1))
    name = "a.pre_encode.out.weight"
    weight, channels = _array(hp, name), len(_array(hp, "a.conv1d.6.weight"))
    out[name] = f32_tensor(name, weight.reshape(len(weight), channels, -1).swapaxes(1, 2).reshape(weight.shape))
    out["a.waves.weight"] = f32_tensor("a.waves.weight", np.repeat([1.0, 0.0], hp.width // 2))
    for i in range(hp.n_layers):
        begin = f"a.blk.{i}"
        for name in (f"{begin}.pos_bias_u", f"{begin}.pos_bias_v"):
            _check_heads(hp, name)
        waves = _array(hp, f"{begin}.linear_pos.weight", hp.width).reshape(hp.heads, hp.head_dim, -1, 2)
        by_wave = np.concatenate([waves[..., 1], -waves[..., 0]], axis=2).swapaxes(1, 2)
        out[f"{begin}.attn_waves.weight"] = f32_tensor(f"{begin}.attn_waves.weight", by_wave)
        gain, bias = _batch_norm(hp, f"{begin}.conv_norm")
        filters = _array(hp, f"{begin}.conv_dw.weight").reshape(len(gain), -1) * gain[:, None]
        out[f"{begin}.conv_dw.weight"] = f32_tensor(f"{begin}.conv_dw.weight", filters)
        shift = bias
        if f"{begin}.conv_dw.bias" in hp.tensors:
            shift = _array(hp, f"{begin}.conv_dw.bias") * gain + bias
        out[f"{begin}.conv_dw.bias"] = f32_tensor(f"{begin}.conv_dw.bias", shift)
    return out


def _check_heads(hp: AudioParams, name: str) -> None:
    """Raise ModelError for a wrong shape. With a single head, the tensor may be a vector."""
    tensor, want = hp.tensors.get(name), (hp.heads, hp.head_dim)
    if tensor is not None and (1, *tensor.shape)[-2:] != want:
        raise ModelError(f"tensor {name} has shape {tensor.shape}; expected {want}")


def _batch_norm(hp: AudioParams, name: str) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Return gain and bias of a batch norm, with mean and variance folded in if the file has them."""
    weight, bias = (_array(hp, f"{name}.{part}") for part in ("weight", "bias"))
    if f"{name}.var" not in hp.tensors:
        return weight, bias
    mean, variance = (_array(hp, f"{name}.{part}").astype(np.float64) for part in ("mean", "var"))
    gain = weight / np.sqrt(variance + _BATCH_EPS)
    return gain, bias - mean * gain


def _array(hp: AudioParams, name: str, columns: int | None = None) -> npt.NDArray[np.float32]:
    """Return a tensor of the file and check its number of columns."""
    if name not in hp.tensors:
        raise ModelError(f"tensor {name} is missing; the {hp.settings.projector} model needs it")
    shape = hp.tensors[name].shape
    if columns is not None and shape[-1] != columns:
        raise ModelError(f"tensor {name} has shape {shape}; expected {columns} columns")
    return hp.tensors[name].dequantize().reshape(shape)


def arrange_subsampled(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices: (time, frequency) positions of the convolutions, then frames."""
    times, n_freqs = grid[2], hp.settings.n_mels
    if not 0 < times <= hp.settings.family.max_frames:
        raise ValueError(f"a chunk has {times} frames; the maximum is {hp.settings.family.max_frames}")
    out = []
    for number in range(3):
        taps = subsampling_filters(times, n_freqs)
        out.append(PatchLayout(taps, np.arange(len(taps), dtype=np.int32), unit=1 if number == 0 else 0))
        times, n_freqs = conv_length(times), conv_length(n_freqs)
    order = np.arange(times * n_freqs, dtype=np.int32).reshape(times, n_freqs)
    return *out, PatchLayout(order, np.arange(times, dtype=np.int32))
