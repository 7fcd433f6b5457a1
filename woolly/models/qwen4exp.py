"""Qwen 3.8 Flash Next: gated streams around delta nets and block-sparse attention, n-gram embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_recurrence, read_transformer
from woolly.plan import Handle, Tracer

_KNOWN = (
    *(*EXPERT_KEYS, "ssm.state_size", "rope.dimension_sections", "nextn_predict_layers"),
    "embedding_length_per_layer_input",
)
_MAX_STREAMS, _MAX_NGRAMS, _MAX_HEADS, _MAX_PERIOD = 16, 16, 256, 64


@dataclass(frozen=True)
class Ngrams:
    """Parameters of the n-gram embedding layer. Hashes of n-grams are indices of its table."""

    layer: int
    end: int  # token that ends n-grams
    kernel: int
    factors: tuple[int, ...]
    sizes: tuple[int, ...]
    firsts: tuple[int, ...]


@dataclass(frozen=True)
class Qwen4Params:
    """Common parameters, streams, n-gram table, and block index."""

    common: TransformerParams
    streams: int
    ngrams: Ngrams | None
    index: parts.Index | None  # None: dense attention
    every: tuple[int, ...]  # per layer: positions per block of the index; 0: no index


def read(keys: Keys) -> Qwen4Params:
    """Read the parameters. Text has the same M-RoPE position on all axes."""
    hp = read_transformer(keys, "neox", knows=_KNOWN, optional_heads=True)
    recurrent = keys.pattern("attention.recurrent_layers", hp.n_layers, keys.positive("full_attention_interval", 4))
    hp = replace(
        hp,
        experts=read_experts(keys, normalize=True, ffn=hp.ffn // keys.positive("expert_used_count", 1) or None),
        recurrence=read_recurrence(keys),
        recurrent=recurrent,
    )
    streams = keys.positive("hyper_connection.count")
    if not 1 < streams <= _MAX_STREAMS:
        raise UnsupportedError(f"{keys.architecture} models have 2 to {_MAX_STREAMS} streams; the file has {streams}")
    every = _read_every(keys, hp.n_layers)
    return Qwen4Params(hp, streams, _read_ngrams(keys, hp.n_layers), _read_index(keys, hp, every), every)


def _read_every(keys: Keys, n: int) -> tuple[int, ...]:
    name = "attention.compress_ratios"
    every = keys.per_layer(name, n, 0)
    if not all(x == 0 or 1 < x <= _MAX_PERIOD for x in every):
        raise ModelError(f"metadata key {keys.architecture}.{name} needs a number up to {_MAX_PERIOD} for each layer")
    return every


def _read_index(keys: Keys, hp: TransformerParams, every: tuple[int, ...]) -> parts.Index | None:
    """Read the index, or return None if rows attend to all blocks of the context."""
    sizes, rope = {x for x in every if x}, hp.layers[0].rope
    if not sizes:
        return None
    n, heads = keys.positive("attention.indexer.top_k"), keys.positive("attention.indexer.head_count")
    head_dim = keys.positive("attention.indexer.key_length")
    if len(sizes) > 1 or n % min(sizes) != 0:
        raise UnsupportedError(
            f"{keys.architecture} models need a multiple of the block size as number of positions; the file has {n}"
            f" and {sorted(sizes)}"
        )
    if keys.context <= n:
        keys.positions = n
        return None
    assert rope is not None
    return parts.Index(heads, replace(rope, head_dim=head_dim), n // min(sizes))


def _read_ngrams(keys: Keys, n_layers: int) -> Ngrams | None:
    """Read the n-gram layer, or return None if the file has none."""
    if not keys.has("ple.layers") or not (layers := keys.whole_numbers("ple.layers")):
        return None
    n, each = keys.positive("ple.ngram_size"), keys.positive("ple.heads_per_ngram")
    if len(layers) != 1 or not 0 <= layers[0] < n_layers:
        raise UnsupportedError(f"{keys.architecture} models have one n-gram layer; the file has {layers}")
    if not 2 <= n <= _MAX_NGRAMS or each * (n - 1) > _MAX_HEADS:
        raise UnsupportedError(f"n-grams of {n} tokens with {each} rows each are not supported")
    lists = {}
    for name, least in (
        ("layer_multipliers", n),
        ("head_vocab_sizes", each * (n - 1)),
        ("head_offsets", each * (n - 1)),
    ):
        lists[name] = keys.whole_numbers(f"ple.{name}")[:least]
        if len(lists[name]) < least:
            raise ModelError(
                f"metadata key {keys.architecture}.ple.{name} has {len(lists[name])} numbers; expected {least}"
            )
    end, kernel = keys.integer("ple.eos_token_id"), keys.positive("ple.conv_kernel")
    return Ngrams(layers[0], end, kernel, lists["layer_multipliers"], lists["head_vocab_sizes"], lists["head_offsets"])


def build(p: Tracer, params: Qwen4Params) -> None:
    """Build the model."""
    hp, n = params.common, params.streams
    p.skip(*hp.drafts)
    one = p.embed("token_embd", width=hp.width)
    x = one
    for _ in range(n - 1):
        x = p.concat(x, one)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            if params.ngrams is not None and params.ngrams.layer == i:
                x = x + _of_runs(p, x, params, params.ngrams)
            h, share = _mixed(p, x, "hc_attn", params, "hc_attn_inject")
            y = parts.gated_delta_net(p, h, hp, gate="sigmoid") if hp.recurrent[i] else _attention(p, h, params, i)
            x = x + p.mix_streams(y, share, streams=1)
            h, share = _mixed(p, x, "hc_ffn", params, "hc_ffn_inject")
            x = x + p.mix_streams(parts.experts_or_feed_forward(p, h, hp, i), share, streams=1)
    h, _ = _mixed(p, p.output_rows(x), "output_hc", params)
    p.output(parts.unembedded(p, h, hp))


def _normed(p: Tracer, x: Handle, name: str, hp: TransformerParams) -> Handle:
    """Apply a norm with separate weights to each stream."""
    return p.rms_norm(x, eps=hp.eps, group=hp.width) * p.vector(name)


def _mixed(p: Tracer, x: Handle, name: str, params: Qwen4Params, inject: str = "") -> tuple[Handle, Handle]:
    """Return the input of a layer, a gated mean of the streams, and the gates of the layer's output."""
    hp, n = params.common, params.streams
    normed = _normed(p, x, f"{name}_norm", hp)
    low = p.unary(p.linear(normed, f"{name}_down", width=p.rows(f"{name}_down")) * (1 / n), "silu")
    gated = normed * p.unary(p.linear(low, f"{name}_up", width=x.width), "sigmoid")
    first, *others = p.split(gated, *(hp.width,) * n)
    for other in others:
        first = first + other
    share = p.unary(p.linear(normed, inject, width=n) * (1 / n), "sigmoid") * 2.0 if inject else first
    return first * (1 / n), share


def _of_runs(p: Tracer, x: Handle, params: Qwen4Params, own: Ngrams) -> Handle:
    """Return n-gram embeddings, gated per stream, and a convolution over them."""
    hp, n = params.common, params.streams
    rows = p.ngrams("/per_layer_token_embd", end=own.end, factors=own.factors, sizes=own.sizes, firsts=own.firsts)
    k = _normed(p, p.linear(rows, "ple_key", width=n * hp.width), "ple_norm_key", hp)
    q = _normed(p, x, "ple_norm_query", hp)
    gate = p.unary(p.unary(p.vecdot(k, q, group=hp.width) * hp.width**-0.5, "root"), "sigmoid")
    v = p.mix_streams(p.linear(rows, "ple_value", width=hp.width), gate, streams=1)
    normed = _normed(p, v, "ple_norm_conv", hp)
    return v + p.causal_conv1d(normed, "ple_conv1d", kernel=own.kernel, gap=len(own.factors) - 1)


def _attention(p: Tracer, h: Handle, params: Qwen4Params, i: int) -> Handle:
    """Build attention to the blocks selected by an index. The q matrix also contains the output gate of each head."""
    hp, this, every = params.common, params.common.layers[i], params.every[i]
    width, kv_width = this.heads * this.head_dim, this.kv_heads * this.head_dim
    q, gate = p.split(p.linear(h, "attn_q", width=2 * width), this.head_dim, this.head_dim, groups=this.heads)
    k, v = p.linear(h, "attn_k", width=kv_width), p.linear(h, "attn_v", width=kv_width)
    q, k = p.rms_norm(q, "attn_q_norm", eps=hp.eps), p.rms_norm(k, "attn_k_norm", eps=hp.eps)
    q, k = (parts.apply_rope(p, y, this) for y in (q, k))
    chosen = None
    if params.index is None or not every:
        p.skip("indexer")
    else:
        chosen = _chosen(p, h, params.index, every, hp.eps)
    a = p.attention(q, k, v, head_dim=this.head_dim, scale=this.scale, chosen=chosen)
    return p.linear(a * p.unary(gate, "sigmoid"), "attn_output", width=hp.width)


def _chosen(p: Tracer, h: Handle, index: parts.Index, every: int, eps: float) -> Handle:
    """Select blocks by the mean of their keys, rotated at the block's first position."""
    heads, head_dim = index.heads, index.rope.head_dim
    with p.scope("indexer"):
        q = p.rms_norm(p.linear(h, "q_proj", width=heads * head_dim), "q_norm", eps=eps)
        k = mean = p.linear(h, "k_proj", width=head_dim)
        for _ in range(every - 1):
            k = p.token_shift(k)
            mean = mean + k
        k = p.rms_norm(mean * (1 / every), "k_norm", eps=eps)
    q, k = p.rope(q, index.rope), p.rope(k, replace(index.rope, back=every - 1))
    # All heads have equal weights for every row.
    weights = p.unary(p.slice(q, first=0, width=heads) * 0.0, "sigmoid")
    return p.indexer(q, k, weights, head_dim=head_dim, n=index.n, every=every, whole=True)
