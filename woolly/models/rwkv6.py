"""RWKV-6: data-dependent token shift and decay."""

from __future__ import annotations

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import read_recurrent
from woolly.models.rwkv7 import RwkvParams
from woolly.plan import Handle, Tracer

_MIXED = "wkvrg"  # in the order of the tensors


def read(keys: Keys) -> RwkvParams:
    """Read the parameters."""
    hp, head = read_recurrent(keys, norm="layer"), keys.positive("wkv.head_size")
    if hp.width % head != 0 or keys.integer("token_shift_count", 2) != 2:
        raise ModelError(f"embedding width {hp.width} and head size {head} do not match RWKV-6")
    return RwkvParams(hp, head, keys.integer("rescale_every_n_layers", 0))


def build(p: Tracer, hp: RwkvParams) -> None:
    """Build the model. Converters halve the weights of later layers, to match the halved hidden rows."""
    common, eps = hp.common, hp.common.eps
    x = p.layer_norm(p.embed("token_embd", width=common.width), "token_embd_norm", eps=eps)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + _time_mix(p, p.layer_norm(x, "attn_norm", eps=eps), hp.head)
            h = p.layer_norm(x, "attn_norm_2", eps=eps)
            before = p.token_shift(h)
            k = p.linear(p.lerp(h, before, "channel_mix_lerp_k"), "channel_mix_key", width=common.layers[i].ffn)
            r = p.linear(p.lerp(h, before, "channel_mix_lerp_r"), "channel_mix_receptance", width=common.width)
            y = p.linear(p.unary(k, "relu2"), "channel_mix_value", width=common.width)
            x = x + y * p.unary(r, "sigmoid")
            if hp.rescale and (i + 1) % hp.rescale == 0:
                x = x * 0.5
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=eps), common))


def mixed(p: Tracer, h: Handle) -> tuple[Handle, ...]:
    """Apply token shift: mix rows with the previous row, for decay, key, value, receptance and gate."""
    n, before = h.width, p.token_shift(h)
    low = p.unary(p.linear(p.lerp(h, before, "time_mix_lerp_x"), "time_mix_w1", width=p.rows("time_mix_w1")), "tanh")
    chosen = p.split(p.per_head_linear(low, "time_mix_w2", heads=5, width=n), *(n,) * 5)
    if p.has("time_mix_lerp_fused"):
        fixed = p.split(p.lerp(h, before, "time_mix_lerp_fused"), *(n,) * 5)
    else:
        fixed = tuple(p.lerp(h, before, f"time_mix_lerp_{x}") for x in _MIXED)
    back = before - h
    return tuple(y + back * share for y, share in zip(fixed, chosen, strict=True))


def log_decay(p: Tracer, x: Handle) -> Handle:
    """Return the log decay of each row of a head's state, which is negative."""
    rate = p.unary(p.linear(x, "time_mix_decay_w1", width=p.rows("time_mix_decay_w1")), "tanh")
    rate = p.linear(rate, "time_mix_decay_w2", width=p.rows("time_mix_decay_w2")) + p.vector("time_mix_decay")
    return p.unary(rate, "exp") * -1.0


def _time_mix(p: Tracer, h: Handle, head: int) -> Handle:
    """Build RWKV-6's time mixing. The output comes from the state before each row, plus the row with bonus weights.

    This equals RWKV-7's state after the previous row, without the removal term.
    """
    n = h.width
    to_w, to_k, to_v, to_r, to_g = mixed(p, h)
    names = ((to_r, "receptance"), (to_k, "key"), (to_v, "value"), (to_g, "gate"))
    r, k, v, gate = (p.linear(x, f"time_mix_{name}", width=n) for x, name in names)
    decay, none = log_decay(p, to_w), k * 0.0
    y = p.wkv7(r, p.token_shift(decay), p.token_shift(k), p.token_shift(v), none, none, head=head)
    y = y + v * p.vecdot(r * p.vector("time_mix_first"), k, group=head)
    y = p.layer_norm(y, eps=64e-5, group=head) * p.vector("time_mix_ln") + p.vector("time_mix_ln.bias")
    return p.linear(p.glu(gate, y), "time_mix_output", width=n)
