"""Recurrent layers: a state per sequence instead of keys and values."""

from __future__ import annotations

from typing import Literal

from woolly.models.params import TransformerParams
from woolly.plan import Handle, Tracer


def gated_delta_net(
    p: Tracer, h: Handle, hp: TransformerParams, *, gate: Literal["silu", "sigmoid"] = "silu"
) -> Handle:
    """Build Qwen's gated delta net: q, k and v through one convolution, the delta rule, a norm and a gate.

    Files with fused beta and alpha (Qwen3-Next) group the v heads of each k head. The first of these files also fuse q,
    k, v and z of each k head in one matrix.
    """
    r, grouped = hp.scan, p.has("ssm_ba")
    if p.has("ssm_in"):
        all_four, share = p.linear(h, "ssm_in", width=2 * r.keys + 2 * r.inner), r.inner // r.groups
        q, k, v, z = p.split(all_four, r.state, r.state, share, share, groups=r.groups)
        qkv = p.concat(p.concat(q, k), v)
    else:
        qkv, z = p.linear(h, "attn_qkv", width=2 * r.keys + r.inner), p.linear(h, "attn_gate", width=r.inner)
    q, k, v = p.split(p.causal_conv1d(qkv, "ssm_conv1d", kernel=r.kernel), r.keys, r.keys, r.inner)
    if grouped:
        share = r.heads // r.groups
        beta, alpha = p.split(p.linear(h, "ssm_ba", width=2 * r.heads), share, share, groups=r.groups)
    else:
        beta, alpha = (p.linear(h, name, width=r.heads) for name in ("ssm_beta", "ssm_alpha"))
    decay = p.unary(alpha + p.vector("ssm_dt.bias"), "softplus") * p.vector("ssm_a")
    heads = {"heads_k": r.groups, "heads_v": r.heads}
    o = p.delta_net(q, k, v, decay, p.unary(beta, "sigmoid"), **heads, order="div" if grouped else "mod", eps=hp.eps)
    o = p.rms_norm(o, "ssm_norm", eps=hp.eps)
    return p.linear(p.glu(z, o) if gate == "silu" else o * p.unary(z, gate), "ssm_out", width=hp.width)


def kimi_delta_net(
    p: Tracer,
    h: Handle,
    hp: TransformerParams,
    *,
    floor: float = 0.0,
    is_negative: bool = False,
    l2_eps: float | None = None,
) -> Handle:
    """Build Kimi delta attention: separate convolutions for q, k and v, a decay per channel of k, a gated norm.

    The decay and the gate may be low-rank. With `floor`, the log decay is between `floor` and 0, and the file has
    positive rates, or negated ones with `is_negative`. `l2_eps` is the epsilon of the norms of q and k; None: the
    model's.
    """
    r = hp.scan
    q, k, v = (p.linear(h, f"attn_{x}", width=r.inner) for x in "qkv")
    fade = p.linear(h, "ssm_f_a", width=p.rows("ssm_f_a"))
    gate = "ssm_g" if p.has("ssm_g") else "ssm_g_a"
    z = p.linear(h, gate, width=p.rows(gate))
    beta = p.unary(p.linear(h, "ssm_beta", width=r.heads), "sigmoid")
    q, k, v = (p.causal_conv1d(y, f"ssm_conv1d_{x}", kernel=r.kernel) for x, y in zip("qkv", (q, k, v), strict=True))
    if p.has("ssm_f_b"):
        fade = p.linear(fade, "ssm_f_b", width=r.inner)
    fade, rates = fade + p.vector("ssm_dt.bias"), p.vector("ssm_a").weight
    if floor:
        fade = p.mul_weight(fade, rates, run=r.state)
        decay = p.unary(fade * -1.0 if is_negative else fade, "sigmoid") * floor
    else:
        decay = p.mul_weight(p.unary(fade, "softplus"), rates, run=r.state)
    eps = hp.eps if l2_eps is None else l2_eps
    o = p.delta_net(q, k, v, decay, beta, heads_k=r.heads, heads_v=r.heads, order="div", eps=eps)
    if p.has("ssm_g_b"):
        z = p.linear(z, "ssm_g_b", width=r.inner)
    return p.linear(p.rms_norm(o, "ssm_norm", eps=hp.eps) * p.unary(z, "sigmoid"), "attn_output", width=hp.width)


def mamba(p: Tracer, h: Handle, hp: TransformerParams, *, mixer_eps: float | None = None) -> Handle:
    """Build Mamba. dt, B and C are normed if the file has weights for it; `mixer_eps` norms them without weights."""
    r = hp.scan
    x, z = (p.linear(h, "ssm_in", width=r.inner, first=at) for at in (0, r.inner))
    x = p.causal_conv1d(x, "ssm_conv1d", kernel=r.kernel)
    dt, b, c = p.split(p.linear(x, "ssm_x", width=r.heads + 2 * r.state), r.heads, r.state, r.state)
    if p.has("ssm_dt_norm") or mixer_eps is not None:
        named = (("ssm_dt_norm", dt), ("ssm_b_norm", b), ("ssm_c_norm", c))
        if mixer_eps is None:
            dt, b, c = (p.rms_norm(y, name, eps=hp.eps) for name, y in named)
        else:
            dt, b, c = (p.rms_norm(y, None, eps=mixer_eps) for _, y in named)
    dt = p.unary(p.linear(dt, "ssm_dt", width=r.inner), "softplus")
    y = p.scan_mamba(x, dt, b, c, a="ssm_a", d="ssm_d")
    return p.linear(p.glu(z, y), "ssm_out", width=h.width)


def mamba2(p: Tracer, h: Handle, hp: TransformerParams) -> Handle:
    """Build Mamba 2: x, B and C through one convolution, the scan, a gate, and a group norm if the file has one."""
    r = hp.scan
    widths = r.inner, r.inner + 2 * r.keys, r.heads
    firsts = 0, widths[0], widths[0] + widths[1]
    z, xbc, dt = (p.linear(h, "ssm_in", width=n, first=at) for n, at in zip(widths, firsts, strict=True))
    x, b, c = p.split(p.causal_conv1d(xbc, "ssm_conv1d", kernel=r.kernel), r.inner, r.keys, r.keys)
    dt = p.unary(dt + p.vector("ssm_dt.bias"), "softplus")
    y = p.glu(z, p.scan_mamba2(x, dt, b, c, a="ssm_a", d="ssm_d", groups=r.groups))
    if p.has("ssm_norm"):
        y = p.rms_norm(y, eps=hp.eps, group=r.inner // r.groups) * p.vector("ssm_norm")
    return p.linear(y, "ssm_out", width=h.width)


def short_conv(p: Tracer, h: Handle, *, kernel: int) -> Handle:
    """Build LFM 2's gated short convolution."""
    b, c, x = (p.linear(h, "shortconv.in_proj", width=h.width, first=i * h.width) for i in range(3))
    return p.linear(
        c * p.causal_conv1d(b * x, "shortconv.conv", kernel=kernel, act=""), "shortconv.out_proj", width=h.width
    )
