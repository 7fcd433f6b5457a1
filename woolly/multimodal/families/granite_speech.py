"""Audio encoder of Granite Speech: conformer with block attention (4 s), and a Q-Former over windows of 15 rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import Tensor
from woolly.multimodal.audio import Audio, log_mel_granite
from woolly.multimodal.audio.chunks import HOP, Float32, split_count, split_frames
from woolly.multimodal.audio.settings import AudioSettings
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.relative_positions import RelativeAttention, fourier_tensors, rotation_tensors
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.family import AudioFamily
from woolly.plan import Handle, Tracer

_NORM = 1e-12  # epsilon of the Q-Former's norms
_MASK = 1e4  # subtracted from the scores of masked rows
_MAX_BLOCK, _MAX_CTC_TOKENS = 512, 4096  # CTC tokens are rows of a square matrix
_CTC_TENSORS = ("a.enc_ctc_out.", "a.enc_ctc_out_mid.", "a.ctc_tokens.")


def _layers(p: Tracer, hp: AudioParams, first: int, last: int) -> None:
    """Build conformer layers `first` to `last`; layer 0 includes the input projection."""
    x = p.input(width=hp.width if first else hp.patch)
    x = x if first else p.linear(x, "a.input_projection", width=hp.width)
    relative = RelativeAttention(p, f"a.rotations{first}", hp.heads, _block(hp))
    for i in range(first, last):
        with p.scope(f"a.blk.{i}"):
            x = x + _feed_forward(p, x, hp, "") * 0.5
            h = p.layer_norm(x, "ln1", eps=hp.eps)
            q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
            a = relative.attention(q, k, v, "attn_waves", scale=hp.head_dim**-0.5)
            p.skip("attn_rel_pos_emb")
            x = x + p.linear(a, "attn_out", width=hp.width)
            x = x + _conv_module(p, x, hp)
            x = p.layer_norm(x + _feed_forward(p, x, hp, "_1") * 0.5, "ln2", eps=hp.eps)
    p.output(p.output_rows(x), "embeddings", "none")


def _feed_forward(p: Tracer, x: Handle, hp: AudioParams, which: str) -> Handle:
    h = p.linear(p.layer_norm(x, f"ffn_norm{which}", eps=hp.eps), f"ffn_up{which}", width=p.rows(f"ffn_up{which}"))
    return p.linear(p.unary(h, "silu"), f"ffn_down{which}", width=hp.width)


def _conv_module(p: Tracer, x: Handle, hp: AudioParams) -> Handle:
    """Build the convolution module: GLU, depthwise convolution with folded batch norm, SiLU."""
    h, inner = p.layer_norm(x, "norm_conv", eps=hp.eps), p.rows("conv_pw1") // 2
    value, gate = (p.linear(h, "conv_pw1", width=inner, first=first) for first in (0, inner))
    kernel = p.columns_of("conv_dw")
    h = p.conv1d(value * p.unary(gate, "sigmoid"), "conv_dw", kernel=kernel, before=kernel // 2, act="silu")
    p.skip("conv_norm")
    return p.linear(h, "conv_pw2", width=hp.width)


def _ctc_feedback(p: Tracer, hp: AudioParams) -> None:
    """Build the self-conditioned CTC feedback: add the projected CTC posterior to the rows.

    Softmax over CTC tokens times a matrix is computed as attention over extra rows, one per token.
    """
    x, n = p.input(width=hp.width), p.rows("a.enc_ctc_out")
    scores = p.linear(x, "a.enc_ctc_out", width=n)
    k = p.embedding_bag(scores * 0.0, "a.ctc_tokens")
    v = p.embedding_bag(x * 0.0, "a.enc_ctc_out_mid")
    a = p.attention(scores, k, v, head_dim=n, scale=1.0, mask="block")
    p.output(p.output_rows(x + a + p.vector("a.enc_ctc_out_mid.bias")), "embeddings", "none")


def _projector(p: Tracer, hp: AudioParams) -> None:
    """Build the Q-Former: self-attention of the queries, then cross-attention to the rows of their window.

    Attention blocks contain queries and rows. An extra key column masks the rows that a step must ignore.
    """
    x = p.input(width=hp.width)
    width, heads = p.columns_of("a.proj_query"), hp.keys.positive("audio.projector.head_count")
    y = p.layer_norm(p.embedding_bag(p.slice(x, first=0, width=width) * 0.0, "a.proj_query"), "a.proj_norm", eps=_NORM)
    nothing = p.slice(x, first=0, width=1) * 0.0
    looks = nothing + p.vector("a.proj_mask.looks")
    hides = {
        which: p.embedding_bag(nothing, "a.proj_mask", first=first) for which, first in (("self", 1), ("cross", 2))
    }
    for i in range(_projector_layers(hp)):
        with p.scope(f"a.proj_blk.{i}"):
            for which in ("self", "cross"):
                name, seen = f"{which}_attn", y if which == "self" else x
                q = p.linear(y, f"{name}_q", width=width)
                k, v = (p.linear(seen, f"{name}_{one}", width=width) for one in "kv")
                q, k = (p.concat(a, b, heads=heads, shared=True) for a, b in ((q, looks), (k, hides[which])))
                a = p.attention(q, k, v, head_dim=q.width // heads, scale=(width // heads) ** -0.5, mask="block")
                y = p.layer_norm(y + p.linear(a, f"{name}_out", width=width), f"{name}_norm", eps=_NORM)
            h = p.unary(p.linear(y, "ffn_up", width=p.rows("ffn_up")), "gelu_erf")
            y = p.layer_norm(y + p.linear(h, "ffn_down", width=width), "ffn_norm", eps=_NORM)
    p.output(p.linear(p.output_rows(y), "a.proj_linear", width=p.rows("a.proj_linear")), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages: first half of the layers, CTC feedback, second half, Q-Former."""
    half = hp.n_layers // 2
    halves = [
        StageBuilder(partial(_layers, first=first, last=last), tuple(f"a.blk.{i}." for i in range(first, last)) + own)
        for first, last, own in (
            (0, half, ("a.rotations0.", "a.input_projection.")),
            (half, hp.n_layers, (f"a.rotations{half}.",)),
        )
    ]
    return halves[0], StageBuilder(_ctc_feedback, _CTC_TENSORS), halves[1], StageBuilder(_projector, ("a.", "mm.a."))


def remake(hp: AudioParams) -> dict[str, Tensor]:
    """Convert relative positions to rope coefficients, fold batch norm, add CTC rows and masks."""
    if hp.n_layers < 2:
        raise ModelError(f"the encoder has {hp.n_layers} layer; expected at least 2")
    if hp.keys.has("audio.feature_layer"):
        raise UnsupportedError("features of several layers (clip.audio.feature_layer) are not supported yet")
    if hp.settings.n_mels % 2:
        raise ModelError(f"metadata key clip.audio.num_mel_bins is {hp.settings.n_mels}; expected an even number")
    block, most = _block(hp), hp.keys.positive("audio.max_pos_emb")
    if block > min(most, _MAX_BLOCK):
        raise ModelError(f"attention blocks have {block} rows; the maximum is {min(most, _MAX_BLOCK)}")
    out = rotation_tensors("a.rotations0", block) | rotation_tensors(f"a.rotations{hp.n_layers // 2}", block)
    for i in range(hp.n_layers):
        begin = f"a.blk.{i}"
        table = _array(hp, f"{begin}.attn_rel_pos_emb").astype(np.float64)[most - block + 1 : most + block]
        out |= fourier_tensors(f"{begin}.attn_waves", table[None], hp.heads)
        filters, gain = _array(hp, f"{begin}.conv_dw.weight"), _array(hp, f"{begin}.conv_norm.weight")
        filters = filters.reshape(len(gain), -1) * gain[:, None]
        out[f"{begin}.conv_dw.weight"] = f32_tensor(f"{begin}.conv_dw.weight", filters)
        out[f"{begin}.conv_dw.bias"] = f32_tensor(f"{begin}.conv_dw.bias", _array(hp, f"{begin}.conv_norm.bias"))
    n_ctc_tokens, query = _n_ctc_tokens(hp), _array(hp, "a.proj_query")
    query = query.reshape(-1, query.shape[-1])
    if len(query) != hp.settings.n_queries:
        raise ModelError(f"a.proj_query has {len(query)} rows, but {hp.settings.n_queries} queries read a window")
    letters = _array(hp, "a.enc_ctc_out_mid.weight").T
    return out | {
        "a.enc_ctc_out_mid.weight": f32_tensor("a.enc_ctc_out_mid.weight", letters),
        "a.ctc_tokens.weight": f32_tensor("a.ctc_tokens.weight", np.eye(n_ctc_tokens)),
        "a.proj_query": f32_tensor("a.proj_query", query),
        "a.proj_mask.weight": f32_tensor("a.proj_mask.weight", np.array([[-1.0]])),
        "a.proj_mask.looks": f32_tensor("a.proj_mask.looks", np.array([_MASK])),
    }


def _n_ctc_tokens(hp: AudioParams) -> int:
    """Return the number of CTC tokens."""
    shape, bias = (_shape(hp, f"a.enc_ctc_out{end}") for end in ("_mid.weight", ".bias"))
    if len(shape) != 2 or bias != shape[1:] or shape[1] > _MAX_CTC_TOKENS:
        raise ModelError(
            f"a.enc_ctc_out_mid.weight has shape {shape} and a.enc_ctc_out.bias {bias}; expected a matrix with a column"
            f" for each of at most {_MAX_CTC_TOKENS} CTC tokens"
        )
    return shape[1]


def _shape(hp: AudioParams, name: str) -> tuple[int, ...]:
    if name not in hp.tensors:
        raise ModelError(f"tensor {name} is missing; the granite_speech model needs it")
    return hp.tensors[name].shape


def _array(hp: AudioParams, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    shape = _shape(hp, name)
    return hp.tensors[name].dequantize().reshape(shape)


def _block(hp: AudioParams) -> int:
    return hp.keys.positive("audio.chunk_size")


def _projector_layers(hp: AudioParams) -> int:
    return len({name.split(".")[2] for name in hp.tensors if name.startswith("a.proj_blk.")})


def patch_layout(hp: AudioParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the gather indices of blocks, of rows with CTC rows, of blocks, and of windows with queries."""
    n, block, settings = grid[2], _block(hp), hp.settings
    if not 0 < n <= settings.family.max_frames:
        raise ValueError(f"a chunk has {n} frames; the maximum is {settings.family.max_frames}")
    rows = np.arange(n, dtype=np.int32)
    blocks = np.stack([rows // block * block, np.minimum(rows // block * block + block, n)], axis=1).astype(np.int32)
    layers = PatchLayout(rows, rows, attn_ranges=blocks)
    n_ctc_tokens = len(_array(hp, "a.enc_ctc_out.bias"))
    gather_rows = np.append(np.full(n, -1), np.arange(n_ctc_tokens)).astype(np.int32)
    letters = PatchLayout(
        np.append(rows, np.full(n_ctc_tokens, -1, np.int32)),
        rows,
        attn_ranges=np.tile(np.array([n, n + n_ctc_tokens], np.int32), (n + n_ctc_tokens, 1)),
        gather_rows=gather_rows[:, None],
        gather_weights=np.ones((n + n_ctc_tokens, 1), np.float32),
    )
    return layers, letters, layers, _windows(n, settings.window, settings.n_queries)


def _windows(n: int, window: int, n_queries: int) -> PatchLayout:
    """Return the gather indices of windows: rows, then queries. The zero padding of the last window is not masked."""
    each, n_windows = window + n_queries, -(-n // window)
    order = np.full((n_windows, each), -1, np.int32)
    order[:, :window] = np.arange(n_windows * window).reshape(-1, window)
    order[order >= n] = -1
    gather_rows = np.full((n_windows, each, 3), -1, np.int32)
    gather_rows[:, window:, 0] = np.arange(n_queries)
    gather_rows[:, :window, 1] = gather_rows[:, window:, 2] = 0  # masked for queries and padding
    first = np.repeat(np.arange(n_windows) * each, each)
    outputs = np.arange(n_windows * each).reshape(-1, each)[:, window:].reshape(-1)
    return PatchLayout(
        order.reshape(-1),
        outputs.astype(np.int32),
        attn_ranges=np.stack([first, first + each], axis=1).astype(np.int32),
        gather_rows=gather_rows.reshape(-1, 3),
        gather_weights=np.ones((order.size, 3), np.float32),
    )


def chunks(audio: Audio, settings: AudioSettings) -> Iterator[Float32]:
    """Yield chunks of frame pairs."""
    frames = log_mel_granite(audio.samples, settings.n_mels // 2)
    yield from split_frames(frames[: len(frames) // 2 * 2].reshape(-1, settings.n_mels), settings)


FAMILIES = (
    AudioFamily(
        name="granite_speech",
        placeholder_texts=("<|audio|>",),
        needs_window=True,
        rows=lambda n, settings: -(-n // settings.window) * settings.n_queries,
        chunks=chunks,
        chunk_frames=lambda n_samples, settings: split_count((n_samples // HOP + 1) // 2, settings),
        stages=stages,
        patch_layout=patch_layout,
        remake=remake,
    ),
)
