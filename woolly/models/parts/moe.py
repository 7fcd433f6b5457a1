"""Mixtures of experts."""

from __future__ import annotations

from woolly.models.params import Experts, TransformerParams
from woolly.models.parts.feed_forward import feed_forward
from woolly.plan import Handle, Tracer
from woolly.plan.ops.basic import Act, Gate


def experts_or_feed_forward(
    p: Tracer,
    h: Handle,
    hp: TransformerParams,
    layer: int,
    *,
    act: Gate = "silu",
    limit: float = 0.0,
    shared_limit: float = 0.0,
    shared_act: Gate | None = None,
) -> Handle:
    """Build MoE with optional shared experts if the layer has a router, else a gated MLP.

    `limit` clamps the gates of routed experts and `shared_limit` those of shared experts. `shared_act` is the
    activation of shared experts; None: `act`.
    """
    of_all = act if shared_act is None else shared_act
    if hp.experts is None or not p.has("ffn_gate_inp"):
        return feed_forward(p, h, hp, layer, act=of_all, limit=shared_limit)
    y = experts(p, h, hp.experts, act=act, limit=limit)
    return y + _shared(p, h, of_all, shared_limit) if p.has("ffn_up_shexp") else y


def experts(
    p: Tracer,
    h: Handle,
    mixture: Experts,
    *,
    act: Gate | Act = "silu",
    limit: float = 0.0,
    gated: bool = True,
    router_x: Handle | None = None,
) -> Handle:
    """Build the routed experts. Gate and up may be fused, and the router may have a bias.

    If the file has a table of experts by token id, the table selects the experts instead of the router.
    """
    merged = p.has("ffn_gate_up_exps")
    gate = "ffn_gate_up_exps" if merged else "ffn_gate_exps"
    return p.moe(
        h,
        "ffn_gate_inp",
        gate if gated else None,
        "ffn_gate_up_exps" if merged else "ffn_up_exps",
        "ffn_down_exps",
        n_experts=mixture.count,
        ffn=mixture.ffn,
        n_used=mixture.used,
        scoring=mixture.scoring,
        normalize=mixture.normalize,
        weights_scale=mixture.scale,
        act=act,
        limit=limit,
        select=next((name for name in ("exp_probs_b.bias", "exp_probs_b") if p.has(name)), None),
        table="ffn_gate_tid2eid" if p.has("ffn_gate_tid2eid") else None,
        groups=mixture.groups,
        groups_used=mixture.groups_used,
        group_top=mixture.group_top,
        weigh=mixture.weigh,
        cap=mixture.cap,
        router_x=router_x,
    )


def _shared(p: Tracer, h: Handle, act: Gate, limit: float) -> Handle:
    """Build the shared expert, with its sigmoid gate if the file has one. Gate and up may be fused."""
    if p.has("ffn_gate_shexp"):
        ffn = p.rows("ffn_up_shexp")
        gate, up = p.linear(h, "ffn_gate_shexp", width=ffn), p.linear(h, "ffn_up_shexp", width=ffn)
    else:
        ffn = p.rows("ffn_up_shexp") // 2
        gate, up = (p.linear(h, "ffn_up_shexp", width=ffn, first=at) for at in (0, ffn))
    y = p.linear(p.glu(gate, up, act, limit=limit), "ffn_down_shexp", width=h.width)
    return y * p.unary(p.linear(h, "ffn_gate_inp_shexp", width=1), "sigmoid") if p.has("ffn_gate_inp_shexp") else y
