"""DeepSeek V4: hyper-connections, attention to recent rows and to compressed blocks, MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Rope, Tracer
from woolly.plan.ops.basic import Gate

_KNOWN = (
    *(*EXPERT_KEYS, "swiglu_clamp_exp", "swiglu_clamp_shexp", "nextn_predict_layers"),
    "rope.scaling.yarn_log_multiplier",  # no effect: YaRN does not change the magnitude
)


@dataclass(frozen=True)
class Deepseek4Params:
    """Common parameters, compressed attention, and hyper-connections."""

    common: TransformerParams
    every: tuple[int, ...]  # per layer: positions per compressed block; 0: no blocks
    far: Rope  # rope of layers with blocks
    index: parts.Index | None  # selects blocks; None: rows attend to all blocks
    groups: int  # head groups of the low-rank output projection
    streams: parts.Streams
    limits: tuple[tuple[float, float], ...]  # per layer: gate limits of routed and shared experts; 0: no limit


def read(keys: Keys) -> Deepseek4Params:
    """Read the parameters. YaRN is used only in layers with blocks, and scales frequencies only."""
    hp = read_transformer(keys, "adjacent", knows=_KNOWN, optional_heads=True)
    hp = replace(hp, experts=read_experts(keys, normalize=True, scoring="sqrt_softplus"))
    every = keys.whole_numbers("attention.compress_ratios")[: hp.n_layers]
    if len(every) < hp.n_layers or not all(n == 0 or n > 1 for n in every):
        raise ModelError(f"metadata key {keys.architecture}.attention.compress_ratios needs a number for each layer")
    first = hp.layers[0]
    if first.kv_heads != 1 or first.v_dim != first.head_dim or not first.window or hp.mask:
        raise UnsupportedError(
            f"{keys.architecture} models need one KV head with K and V of equal size, and a sliding window; the file"
            f" has {first.kv_heads} heads of {first.head_dim} and {first.v_dim}, and a window of {first.window}"
        )
    rope = first.rope
    assert rope is not None
    rope = replace(rope, head_dim=rope.n_rot, magnitude=1.0, log_multiplier=1.0)
    near = replace(rope, yarn=False, factor=1.0)
    far = replace(rope, base=keys.number("attention.compress_rope_freq_base"))
    if far.base <= 1:
        raise ModelError(f"the rope base of compressed keys is {far.base:g}; it must be above 1")
    hp = replace(hp, layers=tuple(replace(x, rope=far if n else near) for x, n in zip(hp.layers, every, strict=True)))
    limits = [_limits(keys, name, hp.n_layers) for name in ("swiglu_clamp_exp", "swiglu_clamp_shexp")]
    limits[1] = limits[1] or limits[0]
    if any(min(pair) < 0 or (pair[0] > 0) != (pair[1] > 0) for pair in zip(*limits, strict=True)):
        raise UnsupportedError(
            f"{keys.architecture} models limit the gates of all experts or of no expert; the file has limits"
            f" {limits[0][0]:g} and {limits[1][0]:g}"
        )
    return Deepseek4Params(
        common=hp,
        every=every,
        far=far,
        index=_read_index(keys, far, every),
        groups=keys.positive("attention.output_group_count"),
        streams=parts.read_streams(keys, hp.eps),
        limits=tuple(zip(*limits, strict=True)),
    )


def _limits(keys: Keys, name: str, n: int) -> tuple[float, ...]:
    """Gate limits per layer; empty if the file has no shared experts."""
    if name == "swiglu_clamp_shexp" and not keys.has(name):
        return ()
    return keys.numbers(name, n)


def _read_index(keys: Keys, rope: Rope, every: tuple[int, ...]) -> parts.Index | None:
    """Read the index, or return None if rows attend to all blocks of the context."""
    n, heads = keys.positive("attention.indexer.top_k"), keys.positive("attention.indexer.head_count")
    most = n * min((m for m in every if m), default=1)
    if keys.context <= most:
        keys.positions = most
        return None
    return parts.Index(heads, replace(rope, head_dim=keys.positive("attention.indexer.key_length")), n)


def build(p: Tracer, hp: Deepseek4Params) -> None:
    """Build the model."""
    common, n = hp.common, hp.streams.count
    p.skip(*common.drafts)
    x = parts.copies(p, p.embed("token_embd", width=common.width), hp.streams)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            x = parts.hyper_connected(p, x, "attn", hp.streams, partial(_attention, p, hp=hp, i=i))
            x = parts.hyper_connected(p, x, "ffn", hp.streams, partial(_experts, p, hp=hp, i=i))
    logits = p.linear(p.rms_norm(x, eps=common.eps), "output_hc_fn", width=n)
    share = p.hyper_connections(
        logits, "output_hc_scale", "output_hc_base", streams=n, iterations=0, eps=hp.streams.eps
    )
    parts.read_out(p, p.mix_streams(x, share, streams=n), common)


def _attention(p: Tracer, h: Handle, hp: Deepseek4Params, i: int) -> Handle:
    """Build attention. Keys are also values, so the output is rotated back by the row's position."""
    this, eps, every = hp.common.layers[i], hp.common.eps, hp.every[i]
    heads, head_dim, rope = this.heads, this.head_dim, this.rope
    assert rope is not None
    low = p.rms_norm(p.linear(h, "attn_q_a", width=p.rows("attn_q_a")), "attn_q_a_norm", eps=eps)
    q = p.rms_norm(p.linear(low, "attn_q_b", width=heads * head_dim), eps=eps, group=head_dim)
    q = _apply_rope(p, q, rope, heads)
    k = _apply_rope(p, p.rms_norm(p.linear(h, "attn_kv", width=head_dim), "attn_kv_a_norm", eps=eps), rope)
    if every:
        blocks = _blocks(p, h, "attn_compressor", hp, every, head_dim)
        a = p.attend_compressed(
            q,
            p.cache_rows(k, window=this.window),
            p.cache_rows(blocks),
            _chosen(p, h, low, hp, every),
            head_dim=head_dim,
            scale=this.scale,
            window=this.window,
            every=every,
            sinks="attn_sinks",
        )
    else:
        a = p.attention(
            q, k, head_dim=head_dim, v_dim=head_dim, scale=this.scale, window=this.window, sinks="attn_sinks"
        )
    a = _apply_rope(p, a, replace(rope, inverse=True), heads)
    narrow = p.rows("attn_output_a") // hp.groups
    a = p.per_head_linear(a, "attn_output_a", heads=hp.groups, width=narrow)
    return p.linear(a, "attn_output_b", width=hp.common.width)


def _blocks(p: Tracer, h: Handle, name: str, hp: Deepseek4Params, every: int, width: int) -> Handle:
    """Compress each block of positions to one row, with rope at the block's first position."""
    wide = p.rows(f"{name}_kv")
    kv, gate = (p.linear(h, f"{name}_{x}", width=wide) for x in ("kv", "gate"))
    y = p.compress(kv, gate, f"{name}_ape", every=every, width=width)
    y = p.rms_norm(y, f"{name}_norm", eps=hp.common.eps)
    return _apply_rope(p, y, replace(hp.far, back=every - 1))


def _chosen(p: Tracer, h: Handle, low: Handle, hp: Deepseek4Params, every: int) -> Handle | None:
    """Return the blocks that rows attend to, or None for all blocks (no index, or a short context)."""
    index = hp.index
    if index is None or not p.has("indexer.attn_q_b"):
        p.skip("indexer", *(f"indexer_compressor_{x}" for x in ("kv", "gate", "ape", "norm")))
        return None
    heads, head_dim = index.heads, index.rope.head_dim
    q = _apply_rope(p, p.linear(low, "indexer.attn_q_b", width=heads * head_dim), hp.far, heads)
    k = _blocks(p, h, "indexer_compressor", hp, every, head_dim)
    weights = p.linear(h, "indexer.proj", width=heads) * (heads * head_dim) ** -0.5
    return p.indexer(q, k, weights, head_dim=head_dim, n=index.n, every=every)


def _experts(p: Tracer, h: Handle, hp: Deepseek4Params, i: int) -> Handle:
    limit, shared = hp.limits[i]
    act: Gate = "clipped" if limit else "silu"
    return parts.experts_or_feed_forward(p, h, hp.common, i, act=act, limit=limit, shared_limit=shared)


def _apply_rope(p: Tracer, x: Handle, rope: Rope, heads: int = 1) -> Handle:
    """Apply rope to the last columns of each head."""
    straight = x.width // heads - rope.n_rot
    rotated = p.rope(p.slice(x, first=straight, width=rope.n_rot, groups=heads), rope)
    return p.concat(p.slice(x, first=0, width=straight, groups=heads), rotated, heads=heads)
