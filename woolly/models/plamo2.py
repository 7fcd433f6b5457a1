"""PLaMo 2: Mamba, with one rate per head, alternating with attention; norms before and after both blocks."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_recurrence, read_transformer
from woolly.plan import Handle, Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=("ssm.state_size",), optional_heads=True)
    return replace(hp, recurrence=read_recurrence(keys))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            y = _mamba(p, h, hp) if hp.recurrent[i] else _attention(p, h, hp, i)
            x = x + p.rms_norm(y, "post_attention_norm", eps=hp.eps)
            y = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
            x = x + p.rms_norm(y, "post_ffw_norm", eps=hp.eps)
    p.output(parts.logits(p, x, hp))


def _attention(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build attention. QK norms have weights per head."""
    this = hp.layers[layer]
    q, k, v = parts.projections(p, h, this)
    q, k = (p.rms_norm(x, eps=hp.eps, group=this.head_dim) for x in (q, k))
    q, k = q * p.vector("attn_q_norm"), k * p.vector("attn_k_norm")
    a = parts.attend(p, parts.apply_rope(p, q, this), parts.apply_rope(p, k, this), v, hp, layer)
    return p.linear(a, "attn_output", width=hp.width)


def _mamba(p: Tracer, h: Handle, hp: TransformerParams) -> Handle:
    """Build Mamba 2 with one group. B, C and dt are projected from the convolution's output, and normed."""
    r = hp.scan
    head, rank = r.inner // r.heads, p.rows("ssm_x") - 2 * r.state
    z, x = p.split(p.linear(h, "ssm_in", width=2 * r.inner), head, head, groups=r.heads)
    x = p.causal_conv1d(x, "ssm_conv1d", kernel=r.kernel)
    b, c, dt = p.split(p.linear(x, "ssm_x", width=2 * r.state + rank), r.state, r.state, rank)
    b, c, dt = (p.rms_norm(y, f"ssm_{name}_norm", eps=hp.eps) for y, name in ((b, "b"), (c, "c"), (dt, "dt")))
    dt = p.unary(p.linear(dt, "ssm_dt", width=r.heads), "softplus")
    y = p.scan_mamba2(x, dt, b, c, a="ssm_a", d="ssm_d", groups=1)
    return p.linear(p.glu(z, y), "ssm_out", width=h.width)
