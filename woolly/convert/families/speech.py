"""Speech-to-text models: Parakeet with CTC, RNN-T or TDT."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.tensor_ops import SQUEEZED, TensorOp, picked
from woolly.errors import ModelError

Keys = dict[str, Any]

# Defaults of the encoder's config class.
_DEFAULTS = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_mel_bins": 80,
    "scale_input": True,
    "durations": [0, 1, 2, 3, 4],
    "decoder_hidden_size": 640,
    "num_decoder_layers": 2,
    "max_symbols_per_step": 10,
}
_MAX_LAYERS = 4  # layers of the prediction network
_SHOWN_BY_TENSORS = ("subsampling_conv_channels", "conv_kernel_size")


def _base(c: Hyperparameters, norm: str) -> Keys:
    for name, only in (("subsampling_factor", 8), ("subsampling_conv_kernel_size", 3), ("subsampling_conv_stride", 2)):
        c.reject(name, unless=(None, only))
    kind, width = _kind(c), c.positive("hidden_size")
    _check_activations(c, kind)
    keys: Keys = {
        "block_count": c.n_layers,
        "context_length": 16,
        "encoder.context_length": 1500,
        "embedding_length": width,
        "attention.head_count": c.positive("num_attention_heads"),
        "attention.layer_norm_epsilon": 1e-5,
        "num_mel_bins": c.positive("num_mel_bins"),
        "embedding_scale": float(np.sqrt(width)) if c.flag("scale_input") else 1.0,
        "decoder_type": kind,
    }
    blank = c.integer("pad_token_id" if kind == "ctc" else "blank_token_id")
    if blank != _n_tokens(c) - 1:
        raise ModelError(f"{c.where}: the blank is token {blank}; expected the last of {_n_tokens(c)} tokens")
    if kind != "ctc":
        keys |= {
            "decoder_block_count": c.positive("num_decoder_layers"),
            "max_symbols": c.positive("max_symbols_per_step"),
        }
    return keys | ({"durations": c.items("durations", int)} if kind == "tdt" else {})


def _check_activations(c: Hyperparameters, kind: str) -> None:
    """Raise ModelError for an unknown activation. Encoder and joint network use the same key name."""
    if kind == "ctc":
        c.reject("hidden_act", unless=(None, "silu"))
        return
    encoder = c.outer.get("encoder_config")
    for whose, its, only in (
        ("encoder", encoder if isinstance(encoder, dict) else {}, "silu"),
        ("joint network", c.outer, "relu"),
    ):
        if (found := its.get("hidden_act")) not in (None, only):
            raise ModelError(f"{c.where}: hidden_act of the {whose} is {found!r:.60}; expected {only}")


def _kind(c: Hyperparameters) -> str:
    return str(c.items("architectures", str)[0]).removeprefix("ParakeetFor").lower()


def _n_tokens(c: Hyperparameters) -> int:
    return c.positive("vocab_size")


def _changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Reshape single-row filters to matrices, reorder LSTM gates (input, forget, output, cell), split off durations."""
    if name.endswith((".conv_pw1.weight", ".conv_pw2.weight", ".conv_dw.weight")):
        return (SQUEEZED,)
    if name == "token_embd.weight" and _kind(c) == "ctc":
        return (SQUEEZED,)
    if name.startswith("dec.lstm."):
        n = c.positive("decoder_hidden_size")
        rows = np.arange(4 * n)
        return (picked(np.concatenate([rows[: 2 * n], rows[3 * n :], rows[2 * n : 3 * n]]), 4 * n),)
    if name.startswith("dec.joint_out.") and _kind(c) == "tdt":
        return (picked(np.arange(_n_tokens(c)), _n_scores(c)),)
    if name.startswith("dec.joint_steps."):
        return (picked(np.arange(_n_tokens(c), _n_scores(c)), _n_scores(c)),)
    return ()


def _n_scores(c: Hyperparameters) -> int:
    return _n_tokens(c) + len(c.items("durations", int))


_BLOCK = {
    "norm_feed_forward1": "ffn_norm",
    "feed_forward1.linear1": "ffn_up",
    "feed_forward1.linear2": "ffn_down",
    "norm_self_att": "ln1",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "self_attn.relative_k_proj": "linear_pos",
    "self_attn.bias_u": "pos_bias_u.",
    "self_attn.bias_v": "pos_bias_v.",
    "norm_conv": "norm_conv",
    "conv.pointwise_conv1": "conv_pw1",
    "conv.depthwise_conv": "conv_dw",
    "conv.norm": "conv_norm",
    "conv.norm.running_mean": "conv_norm.mean.",
    "conv.norm.running_var": "conv_norm.var.",
    "conv.pointwise_conv2": "conv_pw2",
    "norm_feed_forward2": "ffn_norm_1",
    "feed_forward2.linear1": "ffn_up_1",
    "feed_forward2.linear2": "ffn_down_1",
    "norm_out": "ln2",
}
_TOP = {
    **{f"encoder.subsampling.layers.{i}": f"a.conv1d.{i}" for i in (0, 2, 3, 5, 6)},
    "encoder.subsampling.linear": "a.pre_encode.out",
    "ctc_head": "token_embd",
    "encoder_projector": "a.joint_enc",
    "decoder.embedding": "token_embd",
    "decoder.decoder_projector": "dec.joint_pred",
    **{
        f"decoder.lstm.{part}_{its}_l{i}": f"dec.lstm.{i}.{name}.{part}"
        for i in range(_MAX_LAYERS)
        for its, name in (("ih", "input"), ("hh", "hidden"))
        for part in ("weight", "bias")
    },
}


def _family(architecture: str, classes: str, head: str) -> CheckpointFamily:
    return CheckpointFamily(
        architecture,
        classes,
        names={name: f"^a.blk.{{i}}.{to}" for name, to in _BLOCK.items()},
        top=_TOP | {"joint.head": head},
        changes=_changes,
        base=_base,
        defaults=_DEFAULTS,
        reads_text=False,
        settings={name: lambda value, c: True for name in _SHOWN_BY_TENSORS},
        rename=lambda c: "parakeet",
    )


FAMILIES = (
    _family("parakeet", "ParakeetForCTC ParakeetForRNNT", "dec.joint_out"),
    _family("parakeet-tdt", "ParakeetForTDT", "dec.joint_out*dec.joint_steps"),
)
