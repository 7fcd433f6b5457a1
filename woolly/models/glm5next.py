"""GLM 5.3 Flash: hyper-connections around Kimi delta attention and MLA with an index over pooled keys; MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import (
    EXPERT_KEYS,
    Recurrence,
    TransformerParams,
    check_causal,
    read_experts,
    read_transformer,
)
from woolly.plan import Handle, Tracer
from woolly.plan.ops.basic import Gate

ARCHITECTURES = ("glm5next", "glm5-next")
_LIMITS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")
_KNOWN = (*EXPERT_KEYS, *_LIMITS, "attention.kv_lora_rank", "nextn_predict_layers", "ssm.state_size")
_L2_EPS = 1e-6  # epsilon of the norms of q and k in delta nets; not in files


@dataclass(frozen=True)
class PoolIndex:
    """Index that selects pools of consecutive positions."""

    heads: int
    head_dim: int
    pool: int  # positions per pool
    n: int  # number of selected pools
    eps: float


@dataclass(frozen=True)
class Glm5NextParams:
    """Common parameters, MLA widths, index and streams."""

    common: TransformerParams
    rank: int  # width of the latent, which is K and V
    k_dim: int
    v_dim: int
    floor: float  # minimum log decay
    index: PoolIndex | None  # None: rows attend to all positions
    streams: parts.Streams
    limits: tuple[tuple[float, float], ...]  # per layer: gate limits of routed and shared experts; 0: no limit


def read(keys: Keys) -> Glm5NextParams:
    """Read the parameters. No layer has rope; layers without KV heads are delta nets."""
    check_causal(keys)
    hp = read_transformer(
        keys.without("rope.dimension_count"), "adjacent", knows=_KNOWN, optional_heads=True
    ).without_ropes()
    heads, floor = hp.layers[0].heads, keys.number("kda.gate_lower_bound", -5.0)
    head = keys.positive("kda.head_dim" if keys.has("kda.head_dim") else "ssm.state_size")
    if floor >= 0:
        raise UnsupportedError(f"{keys.architecture} models need a negative lower bound of the gate, not {floor:g}")
    k_dim, v_dim = (keys.positive(f"attention.{x}_length_mla") for x in ("key", "value"))
    hp = replace(
        hp,
        layers=tuple(replace(layer, scale=k_dim**-0.5) for layer in hp.layers),
        experts=read_experts(keys, normalize=True, scoring="sigmoid"),
        recurrence=Recurrence(keys.positive("ssm.conv_kernel"), heads * head, head, heads, heads),
        recurrent=_recurrent(keys, hp),
    )
    return Glm5NextParams(
        common=hp,
        rank=keys.positive("attention.kv_lora_rank"),
        k_dim=k_dim,
        v_dim=v_dim,
        floor=floor,
        index=_read_index(keys),
        streams=parts.read_streams(keys, hp.eps),
        limits=_read_limits(keys, hp.n_layers),
    )


def _recurrent(keys: Keys, hp: TransformerParams) -> tuple[bool, ...]:
    """Return the layers that are delta nets. Some files name them instead of giving them no KV heads."""
    out = hp.recurrent
    if not any(out):
        out = keys.pattern("attention.recurrent_layers", hp.n_layers, keys.positive("full_attention_interval", 4))
    if all(out):
        raise ModelError("no layer has KV heads")
    return out


def _read_limits(keys: Keys, n: int) -> tuple[tuple[float, float], ...]:
    routed, shared = (keys.numbers(name, n) if keys.has(name) else None for name in _LIMITS)
    routed = (10.0,) * n if routed is None else routed  # the limit of the released model, which some files omit
    shared = routed if shared is None else shared
    if min(*routed, *shared) < 0:
        raise ModelError(f"metadata key {keys.architecture}.{_LIMITS[0]} or {_LIMITS[1]} has a negative limit")
    return tuple(zip(routed, shared, strict=True))


def _read_index(keys: Keys) -> PoolIndex | None:
    """Read the index, or return None if the file has none or rows attend to all positions of the context."""
    if not keys.is_set("attention.indexer.head_count"):
        return None
    heads, head_dim, n = (keys.positive(f"attention.indexer.{x}") for x in ("head_count", "key_length", "top_k"))
    name = "kpool" if keys.has("attention.indexer.kpool") else "block_size"
    pool = keys.positive(f"attention.indexer.{name}")
    if pool < 2 or n % pool != 0:
        raise UnsupportedError(
            f"{keys.architecture} models select a multiple of the pool size; the file has {n} positions and pools"
            f" of {pool}"
        )
    most = n + pool - 1
    if keys.context <= most:
        keys.positions = most
        return None
    return PoolIndex(heads, head_dim, pool, n // pool, keys.number("attention.layer_norm_epsilon", 1e-6))


def build(p: Tracer, params: Glm5NextParams) -> None:
    """Build the model. The result is the mean of the streams."""
    hp, streams = params.common, params.streams
    p.skip(*hp.drafts)
    x = parts.copies(p, p.embed("token_embd", width=hp.width), streams)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = parts.hyper_connected(p, x, "attn", streams, partial(_attention, p, params=params, i=i))
            x = parts.hyper_connected(p, x, "ffn", streams, partial(_feed_forward, p, params=params, i=i))
    p.output(parts.logits(p, parts.mean_stream(p, x, streams), hp))


def build_draft(p: Tracer, params: Glm5NextParams) -> None:
    """Build the MTP block: a layer with attention to all positions, and plain residuals."""
    hp = params.common
    like = hp.n_layers - 1 - hp.recurrent[::-1].index(False)

    def layer(x: Handle) -> Handle:
        x = x + _latent(p, p.rms_norm(x, "attn_norm", eps=hp.eps), replace(params, index=None), like)
        return x + _feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), params, like)

    parts.next_token(p, hp, layer)


def _attention(p: Tracer, h: Handle, params: Glm5NextParams, i: int) -> Handle:
    if params.common.recurrent[i]:
        return parts.kimi_delta_net(p, h, params.common, floor=params.floor, is_negative=True, l2_eps=_L2_EPS)
    return _latent(p, h, params, i)


def _latent(p: Tracer, h: Handle, params: Glm5NextParams, i: int) -> Handle:
    """Build absorbed MLA. K and V of all heads are one row without a rope part."""
    hp, rank = params.common, params.rank
    this, heads = hp.layers[i], hp.layers[i].heads
    low = p.rms_norm(p.linear(h, "attn_q_a", width=p.rows("attn_q_a")), "attn_q_a_norm", eps=hp.eps)
    q = p.per_head_linear(p.linear(low, "attn_q_b", width=heads * params.k_dim), "attn_k_b", heads=heads, width=rank)
    c = p.rms_norm(p.linear(h, "attn_kv_a_mqa", width=rank), "attn_kv_a_norm", eps=hp.eps)
    a = p.attention(q, c, head_dim=rank, v_dim=rank, scale=this.scale, chosen=_chosen(p, h, low, params.index))
    a = p.per_head_linear(a, "attn_v_b", heads=heads, width=params.v_dim)
    return p.linear(a, "attn_output", width=hp.width)


def _chosen(p: Tracer, h: Handle, low: Handle, index: PoolIndex | None) -> Handle | None:
    """Select pools. Each channel of a pooled key is a weighted sum over the pool, with weights from a gate."""
    gate, ape = (
        next((name for name in names if p.has(name)), names[0])
        for names in (
            ("indexer_compressor_gate", "indexer.kpool_gate"),
            ("indexer_compressor_ape", "indexer.kpool_ape"),
        )
    )
    if index is None or not p.has("indexer.attn_q_b"):
        p.skip("indexer", gate, ape)
        return None
    heads, head_dim = index.heads, index.head_dim
    with p.scope("indexer"):
        q = p.linear(low, "attn_q_b", width=heads * head_dim)
        k = p.layer_norm(p.linear(h, "attn_k", width=head_dim), "k_norm", eps=index.eps)
        weights = p.linear(h, "proj", width=heads) * (heads * head_dim) ** -0.5
    k = p.compress(k, p.linear(h, gate, width=head_dim), ape, every=index.pool, width=head_dim)
    return p.indexer(q, k, weights, head_dim=head_dim, n=index.n, every=index.pool, whole=True)


def _feed_forward(p: Tracer, h: Handle, params: Glm5NextParams, i: int) -> Handle:
    limit, shared = params.limits[i]
    act, shared_act = (_act(limit), _act(shared))
    return parts.experts_or_feed_forward(
        p, h, params.common, i, act=act, limit=limit, shared_limit=shared, shared_act=shared_act
    )


def _act(limit: float) -> Gate:
    return "clipped" if limit else "silu"
