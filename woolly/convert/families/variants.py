"""Classes of transformers that another architecture computes."""

from __future__ import annotations

from typing import Any

from woolly.convert.config_ledger import GELU_TANH, activation
from woolly.convert.families.decoders import granite_keys
from woolly.convert.families.gemma import gemma2_keys
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import expert_keys, window_keys
from woolly.convert.hyperparameters import Hyperparameters

Keys = dict[str, Any]


def _cwm(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the keys of a Granite without multipliers, which is a Llama with windows in some layers."""
    return window_keys(c) | {"attention.scale": keys["attention.key_length"] ** -0.5, "logit_scale": 1.0}


def _hyperclovax(c: Hyperparameters, keys: Keys) -> Keys:
    """Return Granite's multipliers. Logits are multiplied by `logits_scaling`, which divides them in Granite."""
    usual = keys["attention.key_length"] ** -0.5
    scales = {"logit_scale": 1.0 / c.number("logits_scaling", default=1.0)}
    return granite_keys(c.with_defaults({"attention_multiplier": usual}), keys) | scales


def _solar_open(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the keys of a GLM 4.5 without dense layers."""
    inner = c.positive("moe_intermediate_size")
    shared = c.integer("n_shared_experts", default=0)
    experts = expert_keys(c, scoring="sigmoid", normalize=c.flag("norm_topk_prob", default=True))
    out = experts | {"feed_forward_length": inner, "leading_dense_block_count": 0}
    return out | (
        {"expert_shared_count": shared, "expert_shared_feed_forward_length": shared * inner} if shared else {}
    )


FAMILIES = (
    CheckpointFamily("cwm", "CwmForCausalLM", _cwm, pairs=True, rename=lambda c: "granite_swa"),
    CheckpointFamily("helium", "HeliumForCausalLM", rename=lambda c: "llama"),
    CheckpointFamily(
        "hyperclovax",
        "HyperCLOVAXForCausalLM",
        _hyperclovax,
        names={"post_norm1": "post_attention_norm", "post_norm2": "post_ffw_norm"},
        pairs=True,
        settings={"use_post_norm": (True, False)},  # the tensors tell
        rename=lambda c: "granite",
    ),
    CheckpointFamily(
        "solar_open",
        "SolarOpenForCausalLM",
        _solar_open,
        names={"post_attention_layernorm": "post_attention_norm"},
        defaults={"intermediate_size": 1},  # these models have no dense layers
        rename=lambda c: "glm4moe",
    ),
    CheckpointFamily(
        "vaultgemma",
        "VaultGemmaForCausalLM",
        gemma2_keys,
        plus_one=True,
        settings=activation(GELU_TANH),
        rename=lambda c: "gemma2",
    ),
)
