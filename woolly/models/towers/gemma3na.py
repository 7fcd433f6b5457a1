"""Audio encoder of Gemma 3n: two convolutions with cumulative group norm, a conformer, every fourth row kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.models.towers.arrangement import Arrangement, Grid
from woolly.models.towers.fixed import product
from woolly.models.towers.gemma4a import distance_waves, feed_forward, filtered, halving_filters
from woolly.models.towers.params import AudioParams
from woolly.models.towers.relative import Turned
from woolly.models.towers.stage import StageBuilder
from woolly.models.towers.tensors import as_matrix, made
from woolly.multimodal.audio.settings import conv_length
from woolly.plan import Handle, Tracer
from woolly.plan.exact import exact_log, exact_softplus

PROJECTORS = ("gemma3na",)

_EPS = 1e-6  # of all norms of rows: converters wrote another into files
_RUNNING_EPS = 1e-3  # of norms by what was heard so far
_REACH = 13  # rows that a row sees: itself and those before it
_KEPT = 4  # rows of which the first is kept
_CAP = 50.0  # bound of scores
_NONE, _END = -1, 0  # places in the table of tokens of audio: of no row, and of the end of an audio clip


def _conv(p: Tracer, hp: AudioParams, number: int) -> None:
    """Nine places of time and pitch."""
    name = f"a.conv1d.{number}"
    x = p.linear(p.given(width=p.columns_of(name)), name, width=p.rows(name))
    p.output(p.output_rows(x), "embeddings", "none")


def _normed(p: Tracer, hp: AudioParams) -> None:
    """All pitches of a time side by side."""
    n_channels = hp.tensors["a.conv1d.0.norm.weight"].shape[0]
    x = _by_the_past(p, p.given(width=conv_length(hp.settings.n_mels) * n_channels), 0)
    p.output(p.output_rows(x), "embeddings", "none")


def _by_the_past(p: Tracer, x: Handle, number: int) -> Handle:
    return p.act(p.running_norm(x, f"a.conv1d.{number}.norm", eps=_RUNNING_EPS), "relu")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """The second norm, all layers, and what makes rows of the prompt."""
    x = _by_the_past(p, p.given(width=p.columns_of("a.pre_encode.out")), 1)
    x = p.linear(x, "a.pre_encode.out", width=hp.width)
    turned = Turned(p, "a.turns", hp.heads, _REACH)
    for i in range(hp.n_layers):
        with p.scope(f"a.blk.{i}"):
            x = feed_forward(p, x, hp, i, "")
            x = x + p.rms_norm(_attention(p, x, hp, turned), "ln2", eps=_EPS)
            x = x + filtered(p, x, hp, i)
            x = p.rms_norm(feed_forward(p, x, hp, i, "_1"), "layer_pre_norm", eps=_EPS)
    y = p.rms_norm(p.output_rows(x), "mm.a.soft_emb_norm", eps=_EPS)
    y = p.linear(y, "mm.a.input_projection", width=p.rows("mm.a.input_projection"))
    p.skip("mm.a.embedding", "mm.a.hard_emb_norm")  # read by `constants`
    p.output(p.rms_norm(y, eps=_EPS), "embeddings", "none")


def _attention(p: Tracer, x: Handle, hp: AudioParams, turned: Turned) -> Handle:
    h = p.rms_norm(x, "ln1", eps=_EPS)
    q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
    q = q * (hp.head_dim**-0.5 / exact_log(2)) * p.vector("q_scale")
    a = turned.attention(q, k, v, "attn_waves", scale=1.0, softcap=_CAP)
    p.skip("linear_pos", "per_dim_scale")
    return p.linear(a, "attn_out", width=hp.width)


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Each convolution is a stage, and the norm between them, whose rows are times."""
    return (
        StageBuilder(partial(_conv, number=0), ("a.conv1d.0.weight",)),
        StageBuilder(_normed, ("a.conv1d.0.norm.",)),
        StageBuilder(partial(_conv, number=1), ("a.conv1d.1.weight",)),
        StageBuilder(_encoder, ("a.", "mm.a.")),
    )


def remake(hp: AudioParams) -> dict[str, Tensor]:
    """Distances as waves, filters as matrices, and scales of q as they multiply: a file has what softplus takes."""
    out = distance_waves(hp, _REACH, "linear_pos")
    for i in range(hp.n_layers):
        begin = f"a.blk.{i}"
        if (name := f"{begin}.conv_dw.weight") in hp.tensors:
            out[name] = as_matrix(hp.tensors[name])
        trained = hp.tensors.get(f"{begin}.per_dim_scale", hp.tensors.get(f"{begin}.per_dim_scale.weight"))
        if trained is None or trained.n_elements != hp.head_dim:
            raise ModelError(f"tensor {begin}.per_dim_scale is missing, or has not {hp.head_dim} numbers")
        scale = [exact_softplus(float(one)) for one in trained.dequantize().reshape(-1)]
        out[f"{begin}.q_scale.weight"] = made(f"{begin}.q_scale.weight", np.array(scale))
    return out


def constants(hp: AudioParams) -> npt.NDArray[np.float32]:
    """[2, width]: the row that stands for none, and the one that ends an audio clip, of a table of tokens of audio."""
    return hard_rows(hp.tensors, "mm.a", [_NONE, _END])


def hard_rows(tensors: Mapping[str, Tensor], begin: str, places: list[int]) -> npt.NDArray[np.float32]:
    """[n, width]: what tokens of audio, or of images, are to the text model, by their places in their table."""
    table, norm, matrix = (
        np.asarray(_array(tensors, f"{begin}.{name}.weight"), np.float64)
        for name in ("embedding", "hard_emb_norm", "input_projection")
    )
    rows = _rms(table[places]) * norm
    return _rms(product(rows, np.ascontiguousarray(matrix.T))).astype(np.float32)


def _rms(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    mean = product(rows**2, np.full(rows.shape[1], 1.0 / rows.shape[1]))
    out: npt.NDArray[np.float64] = rows / np.sqrt(mean + _EPS)[:, None]
    return out


def _array(tensors: Mapping[str, Tensor], name: str) -> npt.NDArray[np.float32]:
    if name not in tensors:
        raise ModelError(f"tensor {name} is missing")
    return tensors[name].dequantize().reshape(tensors[name].shape)


def arrange(hp: AudioParams, grid: Grid) -> tuple[Arrangement, ...]:
    """Places by time and pitch, and times, twice; a time sees the latest."""
    times, pitches = grid[2], hp.settings.n_mels
    if not 0 < times <= hp.settings.family.max_frames:
        raise ValueError(f"a piece has {times} frames, and the tower hears up to {hp.settings.family.max_frames}")
    out = []
    for unit in (1, hp.tensors["a.conv1d.0.weight"].shape[0]):  # numbers of a place that filters read
        taps = halving_filters(times, pitches, ahead=1)
        out.append(Arrangement(taps, np.arange(len(taps), dtype=np.int32), unit=unit))
        times, pitches = conv_length(times), conv_length(pitches)
        rows = np.arange(times, dtype=np.int32)
        order = np.arange(times * pitches, dtype=np.int32).reshape(times, pitches)
        out.append(Arrangement(order, rows))
    sees = np.stack([np.maximum(rows - _REACH + 1, 0), rows + 1], axis=1)
    return *out[:3], Arrangement(order, rows[::_KEPT], sees=sees)
