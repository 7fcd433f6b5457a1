"""Nemotron H and Nemotron 3: each layer is Mamba 2, attention without rope, or an MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_recurrence, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")


@dataclass(frozen=True)
class NemotronParams:
    """Common parameters and norm epsilon of the MTP block."""

    common: TransformerParams
    head_eps: float


def read(keys: Keys) -> NemotronParams:
    """Read the parameters. A layer without KV heads and without MLP width is recurrent."""
    knows = (*EXPERT_KEYS, "ssm.state_size", "nextn_predict_layers")
    hp = read_transformer(keys, "neox", knows=knows, optional_heads=True)
    recurrent = tuple(kv and not layer.ffn for kv, layer in zip(hp.recurrent, hp.layers, strict=True))
    experts = read_experts(keys, normalize=True, scoring="sigmoid")
    hp = replace(hp, recurrence=read_recurrence(keys), recurrent=recurrent, experts=experts)
    return NemotronParams(hp.without_ropes(), keys.number("attention.layer_norm_epsilon", hp.eps))


def build(p: Tracer, params: NemotronParams) -> None:
    """Build the model."""
    hp = params.common
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i, layer in enumerate(hp.layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            if hp.recurrent[i]:
                x = x + parts.mamba2(p, h, hp)
            elif layer.ffn:
                x = x + _feed_forward(p, h, hp, i)
            else:
                x = x + parts.self_attention(p, h, hp, i)
    p.output(parts.logits(p, x, hp))


def build_draft(p: Tracer, params: NemotronParams) -> None:
    """Build the MTP block: a layer with attention and experts, and a layer norm before the head."""
    hp = params.common
    i = max((i for i, layer in enumerate(hp.layers) if layer.kv_heads and not layer.ffn), default=-1)
    if i < 0:
        raise UnsupportedError("the draft block has attention, but no layer gives its number of heads")

    def layer(x: Handle) -> Handle:
        x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
        return x + _feed_forward(p, p.rms_norm(x, "post_attention_norm", eps=hp.eps), hp, i)

    parts.next_token(p, hp, layer, head_eps=params.head_eps)


def _feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build an MLP with squared ReLU and no gate. The experts' input may be a narrower projection than the router's."""
    if hp.experts is None or not p.has("ffn_gate_inp"):
        return parts.plain_feed_forward(p, h, hp, layer, act="relu2")
    shared = p.unary(p.linear(h, "ffn_up_shexp", width=p.rows("ffn_up_shexp")), "relu2")
    shared = p.linear(shared, "ffn_down_shexp", width=hp.width)
    if not p.has("ffn_latent_down"):
        return parts.experts(p, h, hp.experts, act="relu2", gated=False) + shared
    z = p.linear(h, "ffn_latent_down", width=p.rows("ffn_latent_down"))
    y = parts.experts(p, z, hp.experts, act="relu2", gated=False, router_x=h)
    return p.linear(y, "ffn_latent_up", width=hp.width) + shared
