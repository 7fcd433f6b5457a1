"""ARWKV-7: Qwen 2 with attention distilled into RWKV-7's recurrence; the MLP is unchanged."""

from __future__ import annotations

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import read_recurrent
from woolly.models.rwkv7 import RwkvParams, time_mix
from woolly.plan import Handle, Tracer


def read(keys: Keys) -> RwkvParams:
    """Read the parameters."""
    hp, head = read_recurrent(keys), keys.positive("wkv.head_size")
    if hp.width % head != 0 or keys.integer("token_shift_count", 1) != 1:
        raise ModelError(f"embedding width {hp.width} and head size {head} do not match ARWKV-7")
    return RwkvParams(hp, head)


def build(p: Tracer, hp: RwkvParams) -> None:
    """Build the model."""
    common, first = hp.common, None
    x = p.embed("token_embd", width=common.width)
    v: Handle
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            a, v = time_mix(p, p.rms_norm(x, "attn_norm", eps=common.eps), hp.head, first)
            first = v if first is None else first
            x = x + a
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, i)
    p.output(parts.logits(p, x, common))
