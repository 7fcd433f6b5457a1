"""QRWKV-6: Qwen 2 with attention distilled into RWKV-6's recurrence; the MLP is unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_recurrent
from woolly.models.rwkv6 import log_decay, mixed
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class DistilledParams:
    """Common parameters and heads of the state."""

    common: TransformerParams
    head: int  # columns per head
    shared: int  # heads per key and value head


def read(keys: Keys) -> DistilledParams:
    """Read the parameters."""
    hp, head = read_recurrent(keys), keys.positive("wkv.head_size")
    heads, kv_heads = hp.width // head, keys.integer("attention.head_count_kv", 0)
    kv_heads = kv_heads or heads
    if hp.width % head != 0 or keys.integer("token_shift_count", 1) != 1:
        raise ModelError(f"embedding width {hp.width} and head size {head} do not match QRWKV-6")
    if kv_heads < 1 or heads % kv_heads != 0:
        raise ModelError(f"{heads} state heads are not divisible by {kv_heads} key heads")
    return DistilledParams(hp, head, heads // kv_heads)


def build(p: Tracer, hp: DistilledParams) -> None:
    """Build the model."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + _time_mix(p, p.rms_norm(x, "attn_norm", eps=common.eps), hp)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, i)
    p.output(parts.logits(p, x, common))


def _time_mix(p: Tracer, h: Handle, hp: DistilledParams) -> Handle:
    """Build RWKV-7's time mixing without the removal term: the output of the state after each row.

    Keys are scaled by 1 - decay.
    """
    n, kv_width = h.width, h.width // hp.shared
    to_w, to_k, to_v, to_r, to_g = mixed(p, h)
    r = p.linear(to_r, "time_mix_receptance", width=n) * hp.head**-0.5
    k, v = (
        _repeated(p, p.linear(x, f"time_mix_{name}", width=kv_width), kv_width // hp.head, hp.shared)
        for x, name in ((to_k, "key"), (to_v, "value"))
    )
    decay, none = log_decay(p, to_w), k * 0.0
    y = p.wkv7(r, decay, k - k * p.unary(decay, "exp"), v, none, none, head=hp.head)
    gate = p.unary(p.linear(to_g, "time_mix_gate", width=n), "sigmoid")
    return p.linear(y * gate, "time_mix_output", width=n)


def _repeated(p: Tracer, x: Handle, heads: int, times: int) -> Handle:
    """Repeat each head for the heads that share it."""
    y = x
    for _ in range(times - 1):
        y = p.concat(y, x, heads=heads)
    return y
