"""MLP (feed-forward network)."""

from __future__ import annotations

from woolly.models.params import TransformerParams
from woolly.plan import Handle, Tracer
from woolly.plan.ops.basic import Act, Gate


def feed_forward(
    p: Tracer, h: Handle, hp: TransformerParams, layer: int, *, act: Gate = "silu", limit: float = 0.0
) -> Handle:
    """Build a gated MLP, by default SwiGLU. If gate and up are fused, the gate's rows come first."""
    ffn = hp.layers[layer].ffn
    if p.has("ffn_gate"):
        gate, up = p.linear(h, "ffn_gate", width=ffn), p.linear(h, "ffn_up", width=ffn)
    else:
        gate, up = (p.linear(h, "ffn_up", width=ffn, first=at) for at in (0, ffn))
    return p.linear(p.glu(gate, up, act, limit=limit), "ffn_down", width=hp.width)


def plain_feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int, *, act: Act) -> Handle:
    """Build an MLP without a gate: down(act(up))."""
    return p.linear(p.unary(p.linear(h, "ffn_up", width=hp.layers[layer].ffn), act), "ffn_down", width=hp.width)
