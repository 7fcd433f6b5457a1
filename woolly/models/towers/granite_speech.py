"""Granite Speech: a conformer over blocks of 4 s, then queries that look at each 15 of its rows (the Q-Former)."""

from __future__ import annotations

from functools import partial

import numpy as np

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import Tensor
from woolly.models.towers.arrangement import Arrangement, Grid
from woolly.models.towers.params import AudioParams
from woolly.models.towers.relative import Turned, turned_tensors, waves_of
from woolly.models.towers.stage import StageBuilder
from woolly.models.towers.tensors import made
from woolly.plan import Handle, Tracer

PROJECTORS = ("granite_speech",)

_NORM = 1e-12  # epsilon of the Q-Former's norms
_HIDDEN = 1e4  # what takes a row out of sight is this far below all scores
_MAX_BLOCK, _MAX_LETTERS = 512, 4096  # letters are rows of a square
_LETTERS = ("a.enc_ctc_out.", "a.enc_ctc_out_mid.", "a.letters.")


def _layers(p: Tracer, hp: AudioParams, first: int, last: int) -> None:
    """Some layers of the conformer; before the first of all, frames become rows."""
    x = p.given(width=hp.width if first else hp.patch)
    x = x if first else p.linear(x, "a.input_projection", width=hp.width)
    turned = Turned(p, f"a.turns{first}", hp.heads, _block(hp))
    for i in range(first, last):
        with p.scope(f"a.blk.{i}"):
            x = x + _feed_forward(p, x, hp, "") * 0.5
            h = p.layer_norm(x, "ln1", eps=hp.eps)
            q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
            a = turned.attention(q, k, v, "attn_waves", scale=hp.head_dim**-0.5)
            p.skip("attn_rel_pos_emb")
            x = x + p.linear(a, "attn_out", width=hp.width)
            x = x + _filtered(p, x, hp)
            x = p.layer_norm(x + _feed_forward(p, x, hp, "_1") * 0.5, "ln2", eps=hp.eps)
    p.output(p.output_rows(x), "embeddings", "none")


def _feed_forward(p: Tracer, x: Handle, hp: AudioParams, which: str) -> Handle:
    h = p.linear(p.layer_norm(x, f"ffn_norm{which}", eps=hp.eps), f"ffn_up{which}", width=p.rows(f"ffn_up{which}"))
    return p.linear(p.act(h, "silu"), f"ffn_down{which}", width=hp.width)


def _filtered(p: Tracer, x: Handle, hp: AudioParams) -> Handle:
    """Each column over some rows around, gated before; the filters have the batch's norm in them."""
    h, inner = p.layer_norm(x, "norm_conv", eps=hp.eps), p.rows("conv_pw1") // 2
    value, gate = (p.linear(h, "conv_pw1", width=inner, first=first) for first in (0, inner))
    kernel = p.columns_of("conv_dw")
    h = p.conv_around(value * p.act(gate, "sigmoid"), "conv_dw", kernel=kernel, before=kernel // 2, act="silu")
    p.skip("conv_norm")
    return p.linear(h, "conv_pw2", width=hp.width)


def _letters(p: Tracer, hp: AudioParams) -> None:
    """Rows plus the letters that each is heard as so far.

    Softmax over letters, times a matrix: rows look at as many others, of which each is one letter.
    """
    x, n = p.given(width=hp.width), p.rows("a.enc_ctc_out")
    scores = p.linear(x, "a.enc_ctc_out", width=n)
    k = p.blend(scores * 0.0, "a.letters")
    v = p.blend(x * 0.0, "a.enc_ctc_out_mid")
    a = p.attention(scores, k, v, head_dim=n, scale=1.0, mask="block")
    p.output(p.output_rows(x + a + p.vector("a.enc_ctc_out_mid.bias")), "embeddings", "none")


def _projector(p: Tracer, hp: AudioParams) -> None:
    """Queries look at each other, then at rows of their window, in each layer. All of a window see each other.

    Rows that a query is not to see have a column of their keys which takes them out of sight.
    """
    x = p.given(width=hp.width)
    width, heads = p.columns_of("a.proj_query"), hp.keys.positive("audio.projector.head_count")
    y = p.layer_norm(p.blend(p.columns(x, first=0, width=width) * 0.0, "a.proj_query"), "a.proj_norm", eps=_NORM)
    nothing = p.columns(x, first=0, width=1) * 0.0
    looks = nothing + p.vector("a.proj_hidden.looks")
    hides = {which: p.blend(nothing, "a.proj_hidden", first=first) for which, first in (("self", 1), ("cross", 2))}
    for i in range(_projector_layers(hp)):
        with p.scope(f"a.proj_blk.{i}"):
            for which in ("self", "cross"):
                name, seen = f"{which}_attn", y if which == "self" else x
                q = p.linear(y, f"{name}_q", width=width)
                k, v = (p.linear(seen, f"{name}_{one}", width=width) for one in "kv")
                q, k = (p.join(a, b, heads=heads, shared=True) for a, b in ((q, looks), (k, hides[which])))
                a = p.attention(q, k, v, head_dim=q.width // heads, scale=(width // heads) ** -0.5, mask="block")
                y = p.layer_norm(y + p.linear(a, f"{name}_out", width=width), f"{name}_norm", eps=_NORM)
            h = p.act(p.linear(y, "ffn_up", width=p.rows("ffn_up")), "gelu_erf")
            y = p.layer_norm(y + p.linear(h, "ffn_down", width=width), "ffn_norm", eps=_NORM)
    p.output(p.linear(p.output_rows(y), "a.proj_linear", width=p.rows("a.proj_linear")), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Half of the layers, letters, the other half, the projector."""
    half = hp.n_layers // 2
    halves = [
        StageBuilder(partial(_layers, first=first, last=last), tuple(f"a.blk.{i}." for i in range(first, last)) + own)
        for first, last, own in (
            (0, half, ("a.turns0.", "a.input_projection.")),
            (half, hp.n_layers, (f"a.turns{half}.",)),
        )
    ]
    return halves[0], StageBuilder(_letters, _LETTERS), halves[1], StageBuilder(_projector, ("a.", "mm.a."))


def remake(hp: AudioParams) -> dict[str, Tensor]:
    """Distances as waves, filters with the batch's norm in them, letters as rows, and what hides rows."""
    if hp.n_layers < 2:
        raise ModelError(f"the tower has {hp.n_layers} block; at least 2 were expected")
    if hp.keys.has("audio.feature_layer"):
        raise UnsupportedError("rows of several layers side by side (clip.audio.feature_layer) are not supported yet")
    if hp.settings.n_mels % 2:
        raise ModelError(f"metadata key clip.audio.num_mel_bins is {hp.settings.n_mels}; an even number was expected")
    block, most = _block(hp), hp.keys.positive("audio.max_pos_emb")
    if block > min(most, _MAX_BLOCK):
        raise ModelError(f"blocks of {block} rows exceed {min(most, _MAX_BLOCK)}, the largest distance")
    out = turned_tensors("a.turns0", block) | turned_tensors(f"a.turns{hp.n_layers // 2}", block)
    for i in range(hp.n_layers):
        begin = f"a.blk.{i}"
        table = _array(hp, f"{begin}.attn_rel_pos_emb").astype(np.float64)[most - block + 1 : most + block]
        out |= waves_of(f"{begin}.attn_waves", table[None], hp.heads)
        filters, gain = _array(hp, f"{begin}.conv_dw.weight"), _array(hp, f"{begin}.conv_norm.weight")
        filters = filters.reshape(len(gain), -1) * gain[:, None]
        out[f"{begin}.conv_dw.weight"] = made(f"{begin}.conv_dw.weight", filters)
        out[f"{begin}.conv_dw.bias"] = made(f"{begin}.conv_dw.bias", _array(hp, f"{begin}.conv_norm.bias"))
    n_letters, query = _letters_of(hp), _array(hp, "a.proj_query")
    query = query.reshape(-1, query.shape[-1])
    if len(query) != hp.settings.n_queries:
        raise ModelError(f"a.proj_query has {len(query)} rows, but {hp.settings.n_queries} queries look at a window")
    letters = _array(hp, "a.enc_ctc_out_mid.weight").T
    return out | {
        "a.enc_ctc_out_mid.weight": made("a.enc_ctc_out_mid.weight", letters),
        "a.letters.weight": made("a.letters.weight", np.eye(n_letters)),
        "a.proj_query": made("a.proj_query", query),
        "a.proj_hidden.weight": made("a.proj_hidden.weight", np.array([[-1.0]])),
        "a.proj_hidden.looks": made("a.proj_hidden.looks", np.array([_HIDDEN])),
    }


def _letters_of(hp: AudioParams) -> int:
    """How many letters a row can be heard as."""
    shape, bias = (_shape(hp, f"a.enc_ctc_out{end}") for end in ("_mid.weight", ".bias"))
    if len(shape) != 2 or bias != shape[1:] or shape[1] > _MAX_LETTERS:
        raise ModelError(
            f"a.enc_ctc_out_mid.weight has shape {shape} and a.enc_ctc_out.bias {bias}; a matrix with a column for each"
            f" of at most {_MAX_LETTERS} letters was expected"
        )
    return shape[1]


def _shape(hp: AudioParams, name: str) -> tuple[int, ...]:
    if name not in hp.tensors:
        raise ModelError(f"tensor {name} is missing, which the granite_speech model needs")
    return hp.tensors[name].shape


def _array(hp: AudioParams, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    shape = _shape(hp, name)
    return hp.tensors[name].dequantize().reshape(shape)


def _block(hp: AudioParams) -> int:
    return hp.keys.positive("audio.chunk_size")


def _projector_layers(hp: AudioParams) -> int:
    return len({name.split(".")[2] for name in hp.tensors if name.startswith("a.proj_blk.")})


def arrange(hp: AudioParams, grid: Grid) -> tuple[Arrangement, ...]:
    """Rows in blocks; with rows of letters after them; in blocks again; in windows, each with its queries."""
    n, block, settings = grid[2], _block(hp), hp.settings
    if not 0 < n <= settings.family.max_frames:
        raise ValueError(f"a piece has {n} frames, and the tower hears up to {settings.family.max_frames}")
    rows = np.arange(n, dtype=np.int32)
    blocks = np.stack([rows // block * block, np.minimum(rows // block * block + block, n)], axis=1).astype(np.int32)
    layers = Arrangement(rows, rows, sees=blocks)
    n_letters = len(_array(hp, "a.enc_ctc_out.bias"))
    places = np.append(np.full(n, -1), np.arange(n_letters)).astype(np.int32)
    letters = Arrangement(
        np.append(rows, np.full(n_letters, -1, np.int32)),
        rows,
        sees=np.tile(np.array([n, n + n_letters], np.int32), (n + n_letters, 1)),
        places=places[:, None],
        shares=np.ones((n + n_letters, 1), np.float32),
    )
    return layers, letters, layers, _windows(n, settings.window, settings.n_queries)


def _windows(n: int, window: int, n_queries: int) -> Arrangement:
    """Rows of each window, then its queries. Zeros fill up the last window, and are seen."""
    each, n_windows = window + n_queries, -(-n // window)
    order = np.full((n_windows, each), -1, np.int32)
    order[:, :window] = np.arange(n_windows * window).reshape(-1, window)
    order[order >= n] = -1
    places = np.full((n_windows, each, 3), -1, np.int32)
    places[:, window:, 0] = np.arange(n_queries)
    places[:, :window, 1] = places[:, window:, 2] = 0  # rows hide from queries that look at each other, or these
    first = np.repeat(np.arange(n_windows) * each, each)
    outputs = np.arange(n_windows * each).reshape(-1, each)[:, window:].reshape(-1)
    return Arrangement(
        order.reshape(-1),
        outputs.astype(np.int32),
        sees=np.stack([first, first + each], axis=1).astype(np.int32),
        places=places.reshape(-1, 3),
        shares=np.ones((order.size, 3), np.float32),
    )
