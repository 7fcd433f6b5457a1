"""Parameters of a decoder, read from metadata: common parameters, and a record per layer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from woolly.errors import ModelError, UnsupportedError
from woolly.plan import Rope

if TYPE_CHECKING:
    from woolly.gguf.keys import Keys
    from woolly.plan.ops.attention import Mask
    from woolly.plan.ops.moe import Scoring
    from woolly.plan.rope_scaling import RopeStyle

# Keys that change the computation. A file that sets one is rejected unless the model reads it: ignoring the key would
# give wrong logits.
_ARITHMETIC = (
    "attention.clamp_kqv",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.max_alibi_bias",
    "attention.shared_kv_layers",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_scale",
    "attn_logit_softcapping",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_count",
    "final_logit_softcapping",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "num_loops",
    "residual_scale",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base_swa",
    "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier",
    "router_logit_softcapping",
    "ssm.state_size",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "use_parallel_residual",
)
# Native code counts positions in 32 bits. Contexts are shorter than this, so larger windows or lengths have no effect.
MAX_POSITION = 2**31 - 1
# Keys read by `read_experts`.
EXPERT_KEYS = ("expert_count", "leading_dense_block_count")
_SCORING: dict[int, Scoring] = {1: "softmax", 2: "sigmoid"}
_ROOT = 4  # softplus scoring, which is rare


@dataclass(frozen=True)
class Layer:
    """Parameters of a layer."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int  # columns per V head
    ffn: int  # width of the MLP
    scale: float  # scale of attention scores
    window: int  # sliding window in positions; 0: global attention
    rope: Rope | None  # None: no rope
    divisors: str | None = ""  # tensor of rope frequency divisors; None: no divisors; "": rope_freqs if the file has it
    clamp: float = 0.0  # clamp limit of q, k and v; 0: no limit


@dataclass(frozen=True)
class Experts:
    """MoE parameters of a model; layers without a router are dense."""

    count: int
    used: int
    ffn: int
    scoring: Scoring
    normalize: bool
    scale: float
    groups: int  # expert groups; 0: no groups
    groups_used: int
    group_top: int = 2  # number of best experts whose scores sum to a group's score
    weigh: Literal["output", "input"] = "output"  # apply an expert's weight to its output or input
    cap: float = 0.0  # softcap of the router's logits; 0: no softcap


@dataclass(frozen=True)
class Recurrence:
    """Parameters common to recurrent layers."""

    kernel: int  # kernel size of the convolution
    inner: int  # columns of all heads
    state: int  # rows of a head's state
    heads: int  # heads; in Mamba the rank of dt
    groups: int  # key heads, or heads of B and C

    @property
    def keys(self) -> int:
        """Total key columns of all groups."""
        return self.groups * self.state


@dataclass(frozen=True)
class TransformerParams:
    """Parameters common to decoder-only transformers."""

    width: int
    eps: float
    layers: tuple[Layer, ...]
    experts: Experts | None = None
    softcap: float = 0.0  # softcap of attention scores; 0: no softcap
    logit_softcap: float = 0.0
    temper: float = 0.0  # temperature scaling: growth of q with the logarithm of its position
    temper_length: int = 1
    mask: Mask = ""  # "all": bidirectional
    alibi: float = 0.0  # maximum ALiBi exponent, 0: no ALiBi
    separator: int = 0  # token between the two strings that a reranker compares
    recurrence: Recurrence | None = None
    recurrent: tuple[bool, ...] = ()  # layers with a recurrent state instead of K and V
    n_shared: int = 0  # number of layers at the end without separate K and V (KV sharing)
    drafts: tuple[str, ...] = ()  # draft (MTP) blocks after the last layer

    @property
    def scan(self) -> Recurrence:
        """Parameters of recurrent layers. The model must have recurrent layers."""
        assert self.recurrence is not None
        return self.recurrence

    @property
    def n_layers(self) -> int:
        """Number of computed layers."""
        return len(self.layers)

    @property
    def n_own(self) -> int:
        """Number of layers with separate K and V."""
        return self.n_layers - self.n_shared

    def sharing(self, n: int) -> TransformerParams:
        """Return a copy in which the last n layers use K and V of the last earlier layer of the same kind."""
        kinds = {layer.window > 0 for layer in self.layers}
        if not 0 <= n < self.n_layers or {layer.window > 0 for layer in self.layers[: self.n_layers - n]} != kinds:
            raise ModelError(
                f"{n} of {self.n_layers} layers cannot share K and V: windowed and global layers each need a layer"
                " with K and V"
            )
        return replace(self, n_shared=n)

    @property
    def ffn(self) -> int:
        """Width of the first layer's MLP."""
        return self.layers[0].ffn

    def without_ropes(self) -> TransformerParams:
        """Return a copy without rope."""
        return self.with_ropes(*(False,) * self.n_layers)

    def with_ropes(self, *has_rope: bool) -> TransformerParams:
        """Return a copy with rope in some layers only."""
        pairs = zip(self.layers, has_rope, strict=True)
        return replace(self, layers=tuple(x if yes else replace(x, rope=None) for x, yes in pairs))


def read_transformer(
    keys: Keys,
    style: RopeStyle,
    *,
    knows: Collection[str] = (),
    norm: Literal["rms", "layer"] = "rms",
    period: int | None = None,
    dense_first: bool = False,
    window: int = 0,
    local_base: float | None = None,
    optional_heads: bool = False,
    causal: bool = True,
) -> TransformerParams:
    """Read and check the common parameters. `knows` lists further keys that the model reads.

    If the file does not list sliding-window layers and `period` is set, every layer has the window (default `window`)
    except every period-th layer (with `dense_first` the first of every period). If `local_base` is set, sliding-window
    layers have a separate, unscaled rope. `causal` is the default for files that do not specify causal or bidirectional
    attention.
    """
    if period is not None:
        knows = (*knows, "attention.sliding_window_pattern", "attention.key_length_swa", "rope.dimension_count_swa")
    if local_base is not None:
        knows = (*knows, "rope.freq_base_swa")
    for name in _ARITHMETIC:
        if name not in knows and keys.is_set(name):
            raise UnsupportedError(
                f"metadata key {keys.architecture}.{name} is set, but not supported for {keys.architecture} models yet"
            )
    if keys.string("rope.scaling.type", "none") == "longrope" and "longrope" not in knows:
        raise UnsupportedError(f"rope scaling 'longrope' is not supported yet for {keys.architecture} models")
    n_blocks, n_drafts = keys.positive("block_count"), keys.integer("nextn_predict_layers", 0)
    if n_blocks > _MAX_BLOCKS:
        raise ModelError(f"the file has {n_blocks} blocks; the maximum is {_MAX_BLOCKS}")
    if not 0 <= n_drafts < n_blocks:
        raise ModelError(f"{n_drafts} of {n_blocks} blocks cannot be draft blocks")
    n = n_blocks - n_drafts
    width, eps = keys.positive("embedding_length"), keys.number(_EPSILON[norm])
    window = min(keys.integer("attention.sliding_window", window), MAX_POSITION)
    if eps < 0 or window < 0:
        raise ModelError(f"the norm epsilon is {eps:g} and the attention window is {window}; both must be 0 or more")
    if period is None:
        windows = (window > 0,) * n
    else:
        has_windows = keys.pattern("attention.sliding_window_pattern", n, period, dense_first)
        windows = tuple(window > 0 and one for one in has_windows)
    heads = keys.per_layer("attention.head_count", n)
    kv_heads = keys.per_layer("attention.head_count_kv", n, heads[0]) if keys.has(_KV) else heads
    ffns = keys.per_layer("feed_forward_length", n, 0 if optional_heads else None)
    clamp = keys.number("attention.clamp_kqv", 0.0)  # listed in `knows`, or rejected above
    if not any(heads):
        raise ModelError("no layer has attention heads")
    layers: list[Layer] = []
    for n_heads, n_kv, ffn, has_window in zip(heads, kv_heads, ffns, windows, strict=True):
        if not optional_heads and not (n_heads and n_kv and ffn):
            raise ModelError(
                f"a layer has {n_heads} heads, {n_kv} key-value heads and a feed-forward width of {ffn}; all must be"
                " positive"
            )
        head_dim, v_dim = _head_dims(keys, width, next(one for one in heads if one), has_window)
        if n_kv and n_heads % n_kv != 0:
            raise ModelError(f"{n_heads} attention heads are not divisible by {n_kv} key-value heads")
        rope = read_rope(keys, head_dim, style, local_base if has_window else None)
        scale = keys.number("attention.scale", 0.0) or head_dim**-0.5
        seen = window if has_window else 0
        layers.append(Layer(n_heads, n_kv, head_dim, v_dim, ffn, scale, seen, rope, clamp=max(0.0, clamp)))
    mask: Mask = "" if keys.flag("attention.causal", causal) else "all"
    recurrent, drafts = tuple(n_kv == 0 for n_kv in kv_heads), tuple(f"blk.{n + i}" for i in range(n_drafts))
    return TransformerParams(width, eps, tuple(layers), mask=mask, recurrent=recurrent, drafts=drafts)


def like_draft(keys: Keys, hp: TransformerParams) -> int:
    """Return the last layer of the same kind, windowed or global, as the first draft block."""
    listed, n = keys.listed("attention.sliding_window_pattern"), hp.n_layers
    has_window = bool(listed[n]) if len(listed) > n else True
    return max((i for i in range(n) if (hp.layers[i].window > 0) == has_window), default=n - 1)


_MAX_BLOCKS = 1 << 14  # a file cannot have more tensors, and lists have an item per block
_EPSILON = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}
_KV = "attention.head_count_kv"


def _head_dims(keys: Keys, width: int, n_heads: int, has_window: bool) -> tuple[int, int]:
    """Return the head sizes of K and V. Sliding-window layers may have other sizes."""
    if width % n_heads != 0 and not keys.has("attention.key_length"):
        raise ModelError(f"embedding width {width} is not divisible by {n_heads} heads")
    key, value = (keys.positive(f"attention.{x}_length", width // n_heads) for x in ("key", "value"))
    if not keys.has("attention.value_length"):
        value = key
    if has_window:
        key, value = (keys.positive(f"attention.{x}_length_swa", y) for x, y in (("key", key), ("value", value)))
    return key, value


def read_rope(keys: Keys, head_dim: int, style: RopeStyle, local_base: float | None = None) -> Rope:
    """Return the file's rope. Supported scaling: none, linear, yarn, and longrope, which only needs divisors.

    With `local_base`, return the rope of sliding-window layers, which has this base and no scaling.
    """
    scaling = keys.string("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedError(
            f"rope scaling {scaling!r} is not supported yet; expected none, linear, yarn or longrope"
        )
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    base = keys.number("rope.freq_base", 10000.0)
    n_rot = keys.positive("rope.dimension_count", head_dim)
    if local_base is not None:
        base, scaling = keys.number("rope.freq_base_swa", local_base), "none"
        n_rot = keys.positive("rope.dimension_count_swa", min(n_rot, head_dim))
    if factor <= 0 or base <= 1:
        raise ModelError(f"rope needs a positive factor and a base above 1; the file gives {factor:g} and {base:g}")
    beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0)
    if beta_fast <= 0 or beta_slow <= 0:
        raise ModelError(f"yarn's betas are {beta_fast:g} and {beta_slow:g}; both must be positive")
    whole = keys.number("rope.scaling.yarn_attn_factor", 0.0) if scaling == "yarn" else 0.0
    magnitude = keys.number("rope.scaling.attn_factor", 1.0) * (whole or 1.0)
    # A factor in the file replaces YaRN's magnitude, as in transformers: a multiplier of 1 cancels the computed one.
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0) or (1.0 if whole else 0.0)
    given = keys.whole_numbers("rope.dimension_sections") if keys.is_set("rope.dimension_sections") else ()
    sections = tuple(n for n in given if n)
    return Rope(
        head_dim=head_dim,
        n_rot=n_rot,
        base=base,
        style=style,
        factor=1.0 if scaling in ("none", "longrope") else factor,
        yarn=scaling == "yarn",
        extrapolation=keys.number("rope.scaling.yarn_ext_factor", 1.0),
        magnitude=1.0 if local_base is not None else magnitude,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        original_context=keys.positive("rope.scaling.original_context_length", keys.positive("context_length")),
        log_multiplier=log_multiplier if scaling == "yarn" else 0.0,
        # Sections that do not cover the head are ignored: text has a single position.
        sections=sections if sum(sections) == n_rot // 2 and min(sections, default=0) > 0 else (),
        order="interleaved" if keys.architecture.startswith("qwen3") else "contiguous",
    )


def read_recurrence(keys: Keys) -> Recurrence:
    """Read the parameters of recurrent layers."""
    check_causal(keys)
    out = Recurrence(
        kernel=keys.positive("ssm.conv_kernel"),
        inner=keys.positive("ssm.inner_size"),
        state=keys.positive("ssm.state_size"),
        heads=keys.positive("ssm.time_step_rank"),
        groups=keys.integer("ssm.group_count", 0) or 1,
    )
    if out.heads % out.groups != 0 and keys.has("ssm.group_count"):
        raise ModelError(f"{out.heads} recurrent heads are not divisible by {out.groups} groups")
    return out


def check_causal(keys: Keys) -> None:
    """Raise UnsupportedError for bidirectional attention, because recurrent layers are causal."""
    if not keys.flag("attention.causal", True):
        raise UnsupportedError(f"{keys.architecture} models with bidirectional attention are not supported yet")


def read_recurrent(
    keys: Keys, *, norm: Literal["rms", "layer"] = "rms", recurrence: Recurrence | None = None
) -> TransformerParams:
    """Read the parameters of a model without attention."""
    n, width, eps = keys.positive("block_count"), keys.positive("embedding_length"), keys.number(_EPSILON[norm])
    if n > _MAX_BLOCKS or eps < 0:
        raise ModelError(
            f"the file has {n} blocks and a norm epsilon of {eps:g}; expected at most {_MAX_BLOCKS} blocks and an"
            " epsilon of 0 or more"
        )
    ffns = keys.per_layer("feed_forward_length", n, 0)
    layers = tuple(
        Layer(heads=0, kv_heads=0, head_dim=0, v_dim=0, ffn=ffn, scale=1.0, window=0, rope=None) for ffn in ffns
    )
    return TransformerParams(width, eps, layers, recurrence=recurrence, recurrent=(True,) * n)


def read_experts(
    keys: Keys, *, normalize: bool, scoring: Scoring = "softmax", ffn: int | None = None
) -> Experts | None:
    """Read the MoE parameters, or return None if the file has no experts.

    Keys for scoring, normalization and width override the model's defaults.
    """
    if not keys.is_set("expert_count"):
        return None
    gating = keys.integer("expert_gating_func", 0)
    if gating not in (0, *_SCORING) and not (gating == _ROOT and scoring == "sqrt_softplus"):
        raise UnsupportedError(
            f"metadata key {keys.architecture}.expert_gating_func is {gating}, which is not supported yet; expected 1"
            " (softmax) or 2 (sigmoid)"
        )
    groups = keys.integer("expert_group_count", 0)
    return Experts(
        count=keys.positive("expert_count"),
        used=keys.positive("expert_used_count"),
        ffn=keys.positive("expert_feed_forward_length", ffn),
        scoring=_SCORING.get(gating, scoring),
        normalize=keys.flag("expert_weights_norm", normalize),
        scale=keys.number("expert_weights_scale", 1.0) or 1.0,
        groups=groups if groups > 1 else 0,
        groups_used=keys.integer("expert_group_used_count", 0) if groups > 1 else 0,
    )
