"""Audio encoder of Gemma 3n: two convolutions with cumulative group norm, then a conformer with output stride 4."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.audio import log_mel_usm
from woolly.multimodal.audio.chunks import HOP, split_sample_count, split_samples
from woolly.multimodal.audio.settings import AudioSettings, conv_length
from woolly.multimodal.encoder.derived_tensors import as_matrix, f32_tensor
from woolly.multimodal.encoder.exact_math import product
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.relative_positions import RelativeAttention
from woolly.multimodal.encoder.stage import StageBuilder, subsampling_filters
from woolly.multimodal.families.gemma4a import conv_module, feed_forward, relative_position_tensors
from woolly.multimodal.family import AudioFamily
from woolly.multimodal.prompt_replacement import Placeholder
from woolly.plan import Handle, Tracer
from woolly.plan.exact_math import exact_log, exact_softplus

if TYPE_CHECKING:
    from woolly.multimodal.processed_item import ProcessedItem

_EPS = 1e-6  # epsilon of all RMS norms; files have another value
_RUNNING_EPS = 1e-3  # epsilon of cumulative group norms
_REACH = 13  # attention window: the row and the 12 rows before it
_KEPT = 4  # output stride
_CAP = 50.0  # logit softcap
_PADDING, _END = -1, 0  # rows of the hard embedding table: padding, end of audio
_BEFORE, _AFTER = "\n\n<start_of_audio>", "\n\n"  # around each chunk
_ROWS = 188  # of a chunk, with padding


def _conv(p: Tracer, hp: AudioParams, number: int) -> None:
    """Build a 3 x 3 convolution of stride 2."""
    name = f"a.conv1d.{number}"
    x = p.linear(p.input(width=p.columns_of(name)), name, width=p.rows(name))
    p.output(p.output_rows(x), "embeddings", "none")


def _first_norm(p: Tracer, hp: AudioParams) -> None:
    """Build the first cumulative group norm; a row has all frequencies of a frame."""
    n_channels = hp.tensors["a.conv1d.0.norm.weight"].shape[0]
    x = _cumulative_norm(p, p.input(width=conv_length(hp.settings.n_mels) * n_channels), 0)
    p.output(p.output_rows(x), "embeddings", "none")


def _cumulative_norm(p: Tracer, x: Handle, number: int) -> Handle:
    return p.unary(p.cumulative_norm(x, f"a.conv1d.{number}.norm", eps=_RUNNING_EPS), "relu")


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """Build the second norm, the conformer layers and the projector."""
    x = _cumulative_norm(p, p.input(width=p.columns_of("a.pre_encode.out")), 1)
    x = p.linear(x, "a.pre_encode.out", width=hp.width)
    relative = RelativeAttention(p, "a.rotations", hp.heads, _REACH)
    for i in range(hp.n_layers):
        with p.scope(f"a.blk.{i}"):
            x = feed_forward(p, x, hp, i, "")
            x = x + p.rms_norm(_attention(p, x, hp, relative), "ln2", eps=_EPS)
            x = x + conv_module(p, x, hp, i)
            x = p.rms_norm(feed_forward(p, x, hp, i, "_1"), "layer_pre_norm", eps=_EPS)
    y = p.rms_norm(p.output_rows(x), "mm.a.soft_emb_norm", eps=_EPS)
    y = p.linear(y, "mm.a.input_projection", width=p.rows("mm.a.input_projection"))
    p.skip("mm.a.embedding", "mm.a.hard_emb_norm")  # used by `constants`
    p.output(p.rms_norm(y, eps=_EPS), "embeddings", "none")


def _attention(p: Tracer, x: Handle, hp: AudioParams, relative: RelativeAttention) -> Handle:
    h = p.rms_norm(x, "ln1", eps=_EPS)
    q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
    q = q * (hp.head_dim**-0.5 / exact_log(2)) * p.vector("q_scale")
    a = relative.attention(q, k, v, "attn_waves", scale=1.0, softcap=_CAP)
    p.skip("linear_pos", "per_dim_scale")
    return p.linear(a, "attn_out", width=hp.width)


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages: both convolutions and the norm between them."""
    return (
        StageBuilder(partial(_conv, number=0), ("a.conv1d.0.weight",)),
        StageBuilder(_first_norm, ("a.conv1d.0.norm.",)),
        StageBuilder(partial(_conv, number=1), ("a.conv1d.1.weight",)),
        StageBuilder(_encoder, ("a.", "mm.a.")),
    )


def remake(hp: AudioParams) -> dict[str, Tensor]:
    """Convert relative positions to rope coefficients and filters to matrices, and apply softplus to q scales."""
    out = relative_position_tensors(hp, _REACH, "linear_pos")
    for i in range(hp.n_layers):
        begin = f"a.blk.{i}"
        if (name := f"{begin}.conv_dw.weight") in hp.tensors:
            out[name] = as_matrix(hp.tensors[name])
        trained = hp.tensors.get(f"{begin}.per_dim_scale", hp.tensors.get(f"{begin}.per_dim_scale.weight"))
        if trained is None or trained.n_elements != hp.head_dim:
            raise ModelError(f"tensor {begin}.per_dim_scale is missing, or does not have {hp.head_dim} numbers")
        scale = [exact_softplus(float(one)) for one in trained.dequantize().reshape(-1)]
        out[f"{begin}.q_scale.weight"] = f32_tensor(f"{begin}.q_scale.weight", np.array(scale))
    return out


def constants(hp: AudioParams) -> npt.NDArray[np.float32]:
    """Return the hard embeddings of padding and end of audio, [2, width]."""
    return hard_embeddings(hp.tensors, "mm.a", [_PADDING, _END])


def hard_embeddings(tensors: Mapping[str, Tensor], begin: str, gather_rows: list[int]) -> npt.NDArray[np.float32]:
    """Return hard embeddings of audio or vision tokens by their ids, [n, width]."""
    table, norm, matrix = (
        np.asarray(_array(tensors, f"{begin}.{name}.weight"), np.float64)
        for name in ("embedding", "hard_emb_norm", "input_projection")
    )
    rows = _rms(table[gather_rows]) * norm
    return _rms(product(rows, np.ascontiguousarray(matrix.T))).astype(np.float32)


def _rms(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    mean = product(rows**2, np.full(rows.shape[1], 1.0 / rows.shape[1]))
    out: npt.NDArray[np.float64] = rows / np.sqrt(mean + _EPS)[:, None]
    return out


def _array(tensors: Mapping[str, Tensor], name: str) -> npt.NDArray[np.float32]:
    if name not in tensors:
        raise ModelError(f"tensor {name} is missing")
    return tensors[name].dequantize().reshape(tensors[name].shape)


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices of convolutions and norms. Attention covers the latest rows."""
    times, n_freqs = grid[2], hp.settings.n_mels
    if not 0 < times <= hp.settings.family.max_frames:
        raise ValueError(f"a chunk has {times} frames; the maximum is {hp.settings.family.max_frames}")
    out = []
    for unit in (1, hp.tensors["a.conv1d.0.weight"].shape[0]):  # numbers per filter input
        taps = subsampling_filters(times, n_freqs, ahead=1)
        out.append(PatchLayout(taps, np.arange(len(taps), dtype=np.int32), unit=unit))
        times, n_freqs = conv_length(times), conv_length(n_freqs)
        rows = np.arange(times, dtype=np.int32)
        order = np.arange(times * n_freqs, dtype=np.int32).reshape(times, n_freqs)
        out.append(PatchLayout(order, rows))
    attn_ranges = np.stack([np.maximum(rows - _REACH + 1, 0), rows + 1], axis=1)
    return *out[:3], PatchLayout(order, rows[::_KEPT], attn_ranges=attn_ranges)


def chunk_frames(n_samples: int, settings: AudioSettings) -> list[int]:
    """Return the mel frames of each 30 s."""
    return [(n + -n % 128 - 513) // HOP + 1 for n in split_sample_count(n_samples)]


def parts(prepared: ProcessedItem, settings: AudioSettings) -> list[str | Placeholder]:
    """Return the rows of each chunk, filled up with the file's padding row, then the end row."""
    parts: list[str | Placeholder] = []
    for i, one in enumerate(prepared.inputs):
        _, _, n = settings.merged_grid(one.grid_thw)
        parts += [*([_AFTER, _BEFORE] if i else []), Placeholder(prepared, i, 0, n)]
        parts += [*[Placeholder(prepared, i, n, 1)] * (_ROWS - n), Placeholder(prepared, i, n + 1, 1)]
    return parts


FAMILIES = (
    AudioFamily(
        name="gemma3na",
        begin=_BEFORE,
        end=_AFTER,
        placeholder_texts=("<audio_soft_token>",),
        parts=parts,
        max_frames=2997,
        rows=lambda n, settings: conv_length(n, 4),
        chunks=partial(split_samples, log_mel=log_mel_usm),
        chunk_frames=chunk_frames,
        stages=stages,
        patch_layout=patch_layout,
        remake=remake,
        constants=constants,
    ),
)
