"""Hunyuan 3, Ling 2 and Ring 2: Qwen 3 with dense layers before sigmoid-routed MoE layers, and shared experts."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.models.qwen3 import build as build
from woolly.models.qwen3 import layer
from woolly.plan import Tracer

ARCHITECTURES = ("hy_v3", "bailingmoe2")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "nextn_predict_layers"))
    return replace(hp, experts=read_experts(keys, normalize=keys.architecture == "hy_v3", scoring="sigmoid"))


def build_draft(p: Tracer, hp: TransformerParams) -> None:
    """Build the MTP block: one more layer."""
    parts.next_token(p, hp, lambda x: layer(p, x, hp, hp.n_layers - 1))
