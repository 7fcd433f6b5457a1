"""Audio encoder of Gemma 4: two convolutions over time and frequency, a conformer with causal local attention."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.models.towers.arrangement import Arrangement, Grid
from woolly.models.towers.fixed import powers, product, sines
from woolly.models.towers.gemma4v import clipped
from woolly.models.towers.params import AudioParams
from woolly.models.towers.relative import Turned, turned_tensors, waves_of
from woolly.models.towers.stage import StageBuilder, filter_rows
from woolly.multimodal.audio.settings import conv_length
from woolly.plan import Handle, Tracer
from woolly.plan.exact import exact_log

PROJECTORS = ("gemma4a",)

_EPS = 1e-6  # of all norms: converters wrote another into some files
_REACH = 12  # rows that a row sees: itself and those before it
_TAPS = 9
_CAP = 50.0  # bound of scores
_K_SCALE = exact_log(1 + math.e) / exact_log(2)


def _conv(p: Tracer, hp: AudioParams, number: int) -> None:
    """Nine places of time and pitch, normed over the channels."""
    name = f"a.conv1d.{number}"
    x = p.linear(p.given(width=p.columns_of(name)), name, width=p.rows(name))
    p.output(p.output_rows(p.act(p.layer_norm(x, f"{name}.norm", eps=_EPS), "relu")), "embeddings", "none")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """All pitches of a time side by side, all layers, and what makes rows of the prompt."""
    x = p.linear(p.given(width=p.columns_of("a.input_projection")), "a.input_projection", width=hp.width)
    turned = Turned(p, "a.turns", hp.heads, _REACH)
    for i in range(hp.n_layers):
        with p.scope(f"a.blk.{i}"):
            x = feed_forward(p, x, hp, i, "")
            x = x + p.rms_norm(_attention(p, x, hp, i, turned), "attn_post_norm", eps=_EPS)
            x = x + filtered(p, x, hp, i)
            x = p.rms_norm(feed_forward(p, x, hp, i, "_1"), "ln2", eps=_EPS)
    y = p.output_rows(x)
    if p.has("a.pre_encode.out"):
        y = p.linear(y, "a.pre_encode.out", width=p.rows("a.pre_encode.out"))
    y = p.rms_norm(y, "mm.a.soft_emb_norm" if p.has("mm.a.soft_emb_norm") else None, eps=_EPS)
    p.output(p.linear(y, "mm.a.input_projection", width=p.rows("mm.a.input_projection")), "embeddings", "none")


def feed_forward(p: Tracer, x: Handle, hp: AudioParams, layer: int, which: str) -> Handle:
    """X plus half of what a layer's first or second feed-forward part makes of it."""
    begin = f"a.blk.{layer}.ffn"
    h = clipped(p, p.rms_norm(x, f"ffn_norm{which}", eps=_EPS), f"{begin}_up{which}", hp.tensors)
    h = clipped(p, p.act(h, "silu"), f"{begin}_down{which}", hp.tensors)
    return x + p.rms_norm(h, f"ffn_post_norm{which}", eps=_EPS) * 0.5


def _attention(p: Tracer, x: Handle, hp: AudioParams, layer: int, turned: Turned) -> Handle:
    h = p.rms_norm(x, "attn_pre_norm", eps=_EPS)
    q, k, v = (clipped(p, h, f"a.blk.{layer}.attn_{one}", hp.tensors) for one in "qkv")
    q = q * (hp.head_dim**-0.5 / exact_log(2)) * p.vector("per_dim_scale")
    k = k * _K_SCALE
    k = k * p.vector("per_dim_k_scale") if p.has("per_dim_k_scale") else k
    a = turned.attention(q, k, v, "attn_waves", scale=1.0, softcap=_CAP)
    p.skip("attn_k_rel")
    return clipped(p, a, f"a.blk.{layer}.attn_out", hp.tensors)


def filtered(p: Tracer, x: Handle, hp: AudioParams, layer: int) -> Handle:
    """Each column over the latest rows, gated before. Files have the names of the two norms swapped."""
    h = clipped(p, p.rms_norm(x, "conv_norm", eps=_EPS), f"a.blk.{layer}.conv_pw1", hp.tensors)
    value, gate = p.split(h, h.width // 2, h.width // 2)
    kernel = p.columns_of("conv_dw")
    h = p.conv_around(value * p.act(gate, "sigmoid"), "conv_dw", kernel=kernel, before=kernel - 1)
    h = p.act(p.rms_norm(h, "norm_conv", eps=_EPS), "silu")
    return clipped(p, h, f"a.blk.{layer}.conv_pw2", hp.tensors)


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Each convolution is a stage."""
    convs = (StageBuilder(partial(_conv, number=i), (f"a.conv1d.{i}.",)) for i in (0, 1))
    return *convs, StageBuilder(_encoder, ("a.", "mm.a."))


def remake(hp: AudioParams) -> dict[str, Tensor]:
    """Distances as waves."""
    return distance_waves(hp, _REACH, "attn_k_rel")


def distance_waves(hp: AudioParams, reach: int, matrix: str) -> dict[str, Tensor]:
    """Waves of what each layer's matrix makes of sines and cosines of a distance, for rows that see `reach` back."""
    # Sizes of tensors first: the width alone is a number of the file, which may be anything.
    names = [f"a.blk.{i}.{matrix}.weight" for i in range(hp.n_layers)]
    for name in names:
        if name not in hp.tensors or hp.tensors[name].shape != (hp.width, hp.width):
            raise ModelError(f"tensor {name} is missing, or not a matrix of {hp.width} x {hp.width}")
    half = hp.width // 2
    steps = powers(10000, [Fraction(-i, max(half - 1, 1)) for i in range(half)])
    waves = np.concatenate(sines(np.arange(reach)[:, None] * steps), axis=1)  # [distances, width]
    out = turned_tensors("a.turns", reach)
    for i, name in enumerate(names):
        weight = np.ascontiguousarray(hp.tensors[name].dequantize().T, np.float64)
        made_of = product(waves, weight).reshape(reach, hp.heads, -1)
        by_distance = np.zeros((hp.heads, 2 * reach - 1, hp.head_dim))
        by_distance[:, reach - 1 :] = made_of.swapaxes(0, 1)  # no row sees a later one
        out |= waves_of(f"a.blk.{i}.attn_waves", by_distance, hp.heads)
    return out


def arrange(hp: AudioParams, grid: Grid) -> tuple[Arrangement, ...]:
    """Places by time and pitch; then times, each of which sees the latest."""
    times, pitches = grid[2], hp.settings.n_mels
    if not 0 < times <= hp.settings.family.max_frames:
        raise ValueError(f"a piece has {times} frames, and the tower hears up to {hp.settings.family.max_frames}")
    out = []
    for number in range(2):
        taps = halving_filters(times, pitches)
        out.append(Arrangement(taps, np.arange(len(taps), dtype=np.int32), unit=1 if number == 0 else 0))
        times, pitches = conv_length(times), conv_length(pitches)
    rows = np.arange(times, dtype=np.int32)
    order = np.arange(times * pitches, dtype=np.int32).reshape(times, pitches)
    sees = np.stack([np.maximum(rows - _REACH + 1, 0), rows + 1], axis=1)
    return *out, Arrangement(order, rows, sees=sees)


def halving_filters(times: int, pitches: int, ahead: int = 0) -> npt.NDArray[np.int32]:
    """[n, 9]: what filters of stride 2 cover, time before pitch, as the weights of a file stand.

    They are around each second time, or `ahead` of it.
    """
    by_time = filter_rows(range(ahead, times + ahead, 2), 0, times)[:, None, :, None]
    by_pitch = filter_rows(range(0, pitches, 2), 0, pitches)[None, :, None, :]
    at = np.where((by_time < 0) | (by_pitch < 0), -1, by_time * pitches + by_pitch)
    return at.reshape(-1, _TAPS).astype(np.int32)
