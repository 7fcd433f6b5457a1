"""RWKV-7: token shift, and a state per head that is updated with a generalized delta rule."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_recurrent
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class RwkvParams:
    """Common parameters, head width, and the layer interval at which RWKV-6 halves hidden rows (0: never)."""

    common: TransformerParams
    head: int
    rescale: int = 0


def read(keys: Keys) -> RwkvParams:
    """Read the parameters."""
    hp, head = read_recurrent(keys, norm="layer"), keys.positive("wkv.head_size")
    if hp.width % head != 0 or keys.integer("token_shift_count", 2) != 2:
        raise ModelError(f"embedding width {hp.width} and head size {head} do not match RWKV-7")
    return RwkvParams(hp, head)


def build(p: Tracer, hp: RwkvParams) -> None:
    """Build the model."""
    common, eps = hp.common, hp.common.eps
    x = p.layer_norm(p.embed("token_embd", width=common.width), "token_embd_norm", eps=eps)
    first: Handle | None = None
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            a, v = time_mix(p, p.layer_norm(x, "attn_norm", eps=eps), hp.head, first)
            first = v if first is None else first
            x = x + a
            h = p.layer_norm(x, "attn_norm_2", eps=eps)
            h = p.lerp(h, p.token_shift(h), "channel_mix_lerp_k")
            h = p.unary(p.linear(h, "channel_mix_key", width=common.layers[i].ffn), "relu2")
            x = x + p.linear(h, "channel_mix_value", width=common.width)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=eps), common))


def time_mix(p: Tracer, h: Handle, head: int, first: Handle | None) -> tuple[Handle, Handle]:
    """Return the output of the state, and v. Later layers mix v with the v of the first layer.

    Files of distilled models may have no gate and no norm per head.
    """
    n, gated = h.width, p.has("time_mix_g1")
    mixed = p.split(p.lerp(h, p.token_shift(h), "time_mix_lerp_fused"), *(n,) * (6 if gated else 5))
    to_r, to_w, to_k, to_v, to_a = mixed[:5]

    def narrow(x: Handle, name: str) -> Handle:
        return p.linear(x, f"time_mix_{name}1", width=p.rows(f"time_mix_{name}1"))

    def wide(x: Handle, name: str) -> Handle:
        return p.linear(x, f"time_mix_{name}2", width=n) + p.vector(f"time_mix_{name}0")

    r, k, v = (
        p.linear(x, f"time_mix_{name}", width=n) for x, name in ((to_r, "receptance"), (to_k, "key"), (to_v, "value"))
    )
    decay = p.unary(wide(p.unary(narrow(to_w, "w"), "tanh"), "w"), "sigmoid") * -0.6065306597126334
    if first is None:
        p.skip("time_mix_v0", "time_mix_v1", "time_mix_v2")
    else:
        v = v + (first - v) * p.unary(wide(narrow(to_v, "v"), "v"), "sigmoid")
    rate = p.unary(wide(narrow(to_a, "a"), "a"), "sigmoid")
    kappa = p.rms_norm(k * p.vector("time_mix_k_k"), eps=1e-12, group=head) * head**-0.5
    learned = k * p.vector("time_mix_k_a")
    k = k + learned * rate - learned
    y = p.wkv7(r, decay, k, v, kappa * -1.0, kappa * rate, head=head)
    if p.has("time_mix_ln"):
        y = p.layer_norm(y, eps=64e-5, group=head) * p.vector("time_mix_ln") + p.vector("time_mix_ln.bias")
    y = y + v * p.vecdot(k * p.vector("time_mix_r_k"), r, group=head)
    if gated:
        y = y * p.linear(p.unary(narrow(mixed[5], "g"), "sigmoid"), "time_mix_g2", width=n)
    return p.linear(y, "time_mix_output", width=n), v
