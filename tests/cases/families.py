"""Tiny random models of every architecture: each row shows what its family has that Llama has not.

Prompts of 48 tokens are longer than windows and original contexts, biases and sinks are not 0, and the choice of
experts differs from their weights where a file can say so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.chosen import CHOSEN
from tests.cases.compressed import COMPRESSED
from tests.cases.hybrids import HYBRIDS
from tests.cases.latents import LATENTS
from tests.cases.mixtures import MIXTURES
from tests.cases.newest import NEWEST
from tests.cases.older import OLDER
from tests.cases.rwkv import RWKV
from tests.cases.streams import GEMMA3N
from tests.cases.tiny import GRANITE, N_VOCAB, TINY, YARN, Tiny, metadata
from tests.cases.windowed import WINDOWED

SANDWICH = "attn_norm post_attention_norm ffn_norm post_ffw_norm"
WINDOW = {"attention.sliding_window": 8}
LONG = {"rope.scaling.attn_factor": 1.5}
FACTORS = {
    f"rope_factors_{kind}.weight": [1.0 + step * i for i in range(6)] for kind, step in (("long", 0.7), ("short", 0.1))
}
XIELU = {"alpha_p": [0.9, 0.7], "alpha_n": [1.2, 0.8], "beta": [0.5, 0.5], "eps": [-1e-6, -1e-6]}
SMALL = {"n_layers": 64, "width": 16, "n_heads": 2, "n_kv_heads": 1, "head_dim": 8, "ffn": 24}
GPT_OSS_BIASES = "attn_output ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"


def gemma4(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Heads of 32 without a window, of 16 with one; the last layer has no V, or two layers have neither K nor V."""
    width, keys = tiny.width, metadata(tiny)
    head = 16 if keys["attention.sliding_window_pattern"][i] else 32
    kv, extra = keys["attention.head_count_kv"][i] * head, keys.get("embedding_length_per_layer_input", 0)
    has_kv = i < tiny.n_layers - keys.get("attention.shared_kv_layers", 0)
    out: dict[str, tuple[int, ...]] = {f"{name}.weight": (width,) for name in SANDWICH.split()}
    out |= {"attn_q.weight": (4 * head, width), "attn_output.weight": (width, 4 * head), "attn_q_norm.weight": (head,)}
    if has_kv:
        out |= {"attn_k.weight": (kv, width), "attn_k_norm.weight": (head,)}
    if has_kv and (extra or head == 16):
        out["attn_v.weight"] = (kv, width)
    ffn = keys["feed_forward_length"]
    out |= {"ffn_gate.weight": (ffn, width), "ffn_up.weight": (ffn, width), "ffn_down.weight": (width, ffn)}
    if extra:
        out |= {"inp_gate.weight": (extra, width), "proj.weight": (width, extra), "post_norm.weight": (width,)}
    if n := tiny.experts:
        out |= {f"{name}.weight": (width,) for name in ("post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2")}
        out |= {"ffn_gate_inp.weight": (n, width), "ffn_gate_inp.scale": (width,), "ffn_down_exps.scale": (n,)}
        out |= {"ffn_gate_up_exps.weight": (n, 48, width), "ffn_down_exps.weight": (n, width, 24)}
    return out | {"layer_output_scale.weight": (1,)}


def gemma4_row(name: str, windows: list[bool], **more: Any) -> Tiny:
    keys = {
        "attention.sliding_window_pattern": windows,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base_swa": 10000.0,
        "attention.head_count_kv": [2 if window else 1 for window in windows],
        "final_logit_softcapping": 3.0,
    }
    root = {"rope_freqs.weight": [1.0] * 4 + [1e30] * 12} | more.pop("root", {})
    extra = WINDOW | keys | more.pop("extra", {})
    # Scores are not scaled: with norms near 1 the softmax would be all or nothing.
    more |= {"factors": {"attn_q_norm.weight": 0.3}, "blocks": gemma4}
    return Tiny(name, "gemma4", n_layers=len(windows), rope_base=1e6, root=root, extra=extra, **more)


FAMILIES = (
    HYBRIDS
    | RWKV
    | TINY
    | WINDOWED
    | CHOSEN
    | COMPRESSED
    | LATENTS
    | (MIXTURES | NEWEST)
    | OLDER
    | {GEMMA3N.name: GEMMA3N}
    | {
        tiny.name: tiny
        for tiny in (
            gemma4_row(
                "gemma4",
                [True] * 5 + [False],
                experts=4,
                expert_ffn=24,
                extra={"embedding_length_per_layer_input": 0, "attention.shared_kv_layers": 0},
            ),
            gemma4_row(
                "gemma4-e",
                [True, False, True, False, True, False],
                extra={
                    "embedding_length_per_layer_input": 8,
                    "attention.shared_kv_layers": 2,
                    "attention.head_count_kv": [2] * 6,
                },
                root={
                    "per_layer_token_embd.weight": np.random.RandomState(5).standard_normal((N_VOCAB, 48)) / 8,
                    "per_layer_model_proj.weight": np.random.RandomState(6).standard_normal((48, 64)) / 8,
                    "per_layer_proj_norm.weight": [0.9, 1.1, 1.0, 1.2, 0.8, 1.0, 1.1, 0.9],
                },
            ),
            Tiny("mixtral", "llama", experts=5, ffn=48),
            Tiny("qwen3moe", "qwen3moe", qk_norm=True, head_dim=8, experts=8, expert_ffn=24),
            Tiny(
                "qwen2moe",
                "qwen2moe",
                tied=False,
                qkv_bias=True,
                experts=6,
                expert_ffn=24,
                shared=40,
                more={"ffn_gate_inp_shexp.weight": 64},
            ),
            Tiny("qwen2vl", "qwen2vl", qkv_bias=True, extra={"rope.dimension_sections": [2, 3, 3, 0]}),
            Tiny("paddleocr", "paddleocr", extra={"rope.dimension_sections": [2, 3, 3, 0]}),
            Tiny("qwen3vl", "qwen3vl", qk_norm=True, extra={"rope.dimension_sections": [3, 3, 2, 0]}),
            Tiny(
                "qwen3vlmoe",
                "qwen3vlmoe",
                qk_norm=True,
                experts=4,
                expert_ffn=24,
                extra={"rope.dimension_sections": [3, 3, 2, 0]},
            ),
            Tiny(
                "gemma3",
                "gemma3",
                n_layers=7,
                head_dim=24,
                qk_norm=True,
                norms=SANDWICH,
                rope_base=1e6,
                extra=WINDOW
                | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.freq_base_swa": 10000.0},
            ),
            Tiny(
                "gemma3-array",
                "gemma3",
                n_layers=3,
                qk_norm=True,
                norms=SANDWICH,
                tied=False,
                extra=WINDOW
                | {"attention.sliding_window_pattern": [True, False, True], "final_logit_softcapping": 2.0},
            ),
            Tiny(
                "gemma2",
                "gemma2",
                norms=SANDWICH,
                extra=WINDOW | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
            ),
            Tiny("gemma", "gemma", head_dim=8, n_kv_heads=1),
            Tiny(
                "gpt-oss",
                "gpt-oss",
                qkv_bias=True,
                tied=False,
                norms="attn_norm post_attention_norm",
                experts=4,
                expert_ffn=32,
                biases=GPT_OSS_BIASES,
                more={"attn_sinks.weight": 4},
                extra=WINDOW | YARN,
            ),
            Tiny("phi", "phi3", fused_qkv=True, mlp="fused", tied=False, extra=WINDOW),
            Tiny(
                "phi-long",
                "phi3",
                fused_qkv=True,
                mlp="fused",
                n_rot=12,
                root=FACTORS,
                extra=LONG | {"rope.scaling.original_context_length": 16},
            ),
            Tiny(
                "phi-short",
                "phi3",
                fused_qkv=True,
                mlp="fused",
                n_rot=12,
                root=FACTORS,
                extra=LONG | {"rope.scaling.original_context_length": 512},
            ),
            # Of 32 experts some are near the best one, so that the mixer's weights are not all 1.
            Tiny(
                "phimoe",
                "phimoe",
                qkv_bias=True,
                biases="attn_norm ffn_norm output_norm attn_output",
                experts=32,
                ffn=24,
                tied=False,
                root={name: [*values, 1.7, 1.8] for name, values in FACTORS.items()}
                | {"output.bias": np.random.RandomState(8).standard_normal(N_VOCAB) / 8},
                extra=LONG | {"rope.scaling.original_context_length": 512},
            ),
            Tiny(
                "mistral3",
                "mistral3",
                head_dim=32,
                extra=YARN | {"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0},
            ),
            Tiny("smollm3", "smollm3", n_layers=5),
            Tiny("granitemoe", "granitemoe", extra=GRANITE, experts=4, ffn=32, shared=24),
            Tiny("olmo2", "olmo2", tied=False, qk_norm="whole", norms="post_attention_norm post_ffw_norm"),
            Tiny(
                "olmo3",
                "olmo2",
                tied=False,
                n_layers=5,
                qk_norm="whole",
                norms="post_attention_norm post_ffw_norm",
                extra=WINDOW | YARN,
            ),
            Tiny("olmoe", "olmoe", tied=False, n_kv_heads=4, qk_norm="whole", experts=6, ffn=24),
            Tiny("glm4", "glm4", n_rot=8, qkv_bias=True, mlp="fused", norms=SANDWICH, tied=False),
            Tiny("chatglm", "chatglm", n_rot=8, fused_qkv=True, qkv_bias=True, mlp="fused", tied=False),
            Tiny(
                "glm4moe",
                "glm4moe",
                n_layers=4,
                n_rot=8,
                qkv_bias=True,
                qk_norm=True,
                norms="attn_norm post_attention_norm",
                experts=8,
                expert_ffn=24,
                shared=24,
                dense=1,
                more={"exp_probs_b.bias": 8, "nextn.enorm.weight": 64},
                extra={
                    "nextn_predict_layers": 1,
                    "expert_shared_count": 1,
                    "leading_dense_block_count": 1,
                    "expert_weights_norm": True,
                    "expert_weights_scale": 1.5,
                    "expert_group_count": 4,
                    "expert_group_used_count": 2,
                },
            ),
            Tiny("command-r", "command-r", layer_norm=True, norms="attn_norm", extra={"logit_scale": 0.25}),
            Tiny(
                "command-r-plus",
                "command-r",
                **SMALL,
                layer_norm=True,
                norms="attn_norm",
                qk_norm="heads",
                extra={"logit_scale": 0.25},
            ),
            Tiny(
                "cohere2",
                "cohere2",
                n_layers=5,
                layer_norm=True,
                norms="attn_norm",
                extra=WINDOW | {"logit_scale": 0.25},
            ),
            Tiny("exaone", "exaone", llama3_rope=True),
            Tiny("exaone4", "exaone4", qk_norm=True, norms="post_attention_norm post_ffw_norm"),
            # Other engines know windows, and norms of q and k, only from these 64 layers.
            Tiny(
                "exaone4-window",
                "exaone4",
                **SMALL,
                qk_norm=True,
                norms="post_attention_norm post_ffw_norm",
                extra=WINDOW | {"attention.sliding_window_pattern": 4},
            ),
            Tiny("seed_oss", "seed_oss", qkv_bias=True, head_dim=24, norms="attn_norm post_attention_norm", tied=False),
            Tiny("hunyuan-dense", "hunyuan-dense", qk_norm=True, extra={"rope.scaling.alpha": 4.0}),
            Tiny("hunyuan-moe", "hunyuan-moe", qk_norm=True, experts=4, expert_ffn=96, shared=96),
            Tiny("ernie4_5", "ernie4_5"),
            Tiny(
                "ernie4_5-moe",
                "ernie4_5-moe",
                n_layers=3,
                experts=6,
                expert_ffn=24,
                shared=48,
                dense=1,
                more={"exp_probs_b.bias": 6},
                extra={"leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "expert_shared_count": 2},
            ),
            Tiny(
                "starcoder2",
                "starcoder2",
                qkv_bias=True,
                layer_norm=True,
                mlp="plain",
                biases="attn_norm ffn_norm output_norm attn_output ffn_up ffn_down",
            ),
            Tiny(
                "nemotron",
                "nemotron",
                n_rot=8,
                layer_norm=True,
                mlp="plain",
                biases="attn_norm ffn_norm output_norm",
                tied=False,
            ),
            Tiny(
                "minimax-m2",
                "minimax-m2",
                expert_ffn=24,
                n_rot=8,
                qk_norm="whole",
                experts=6,
                ffn=24,
                tied=False,
                more={"exp_probs_b.bias": 6},
                extra={"expert_gating_func": 2},
            ),
            Tiny("arcee", "arcee", mlp="plain"),
            Tiny(
                "apertus",
                "apertus",
                tied=False,
                qk_norm=True,
                mlp="plain",
                shared_metadata={f"xielu.{k}": v for k, v in XIELU.items()},
            ),
            Tiny(
                "bitnet",
                "bitnet",
                more={"attn_sub_norm.weight": 64, "ffn_sub_norm.weight": 96}
                | {
                    f"{x}.scale": 1
                    for x in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
                },
            ),
            Tiny(
                "stablelm",
                "stablelm",
                n_rot=4,
                layer_norm=True,
                qkv_bias=True,
                biases="attn_norm ffn_norm output_norm",
                tied=False,
            ),
            Tiny(
                "stablelm-12b",
                "stablelm",
                n_rot=4,
                layer_norm=True,
                norms="attn_norm",
                qk_norm="heads",
                biases="attn_norm output_norm",
                tied=False,
                extra={"use_parallel_residual": True},
            ),
            Tiny("internlm2", "internlm2", tied=False),
            Tiny("xverse", "xverse", tied=False),
            Tiny("pangu-embedded", "pangu-embedded", qkv_bias=True, biases="attn_output", tied=False),
            Tiny(
                "dots1",
                "dots1",
                n_layers=3,
                n_kv_heads=4,
                qk_norm=True,
                tied=False,
                experts=6,
                expert_ffn=24,
                shared=48,
                dense=1,
                more={"exp_probs_b.bias": 6},
                extra={
                    "leading_dense_block_count": 1,
                    "expert_shared_count": 2,
                    "expert_gating_func": 2,
                    "expert_weights_norm": True,
                    "expert_weights_scale": 2.5,
                },
            ),
            Tiny("minicpm", "minicpm", extra={key: n for key, n in GRANITE.items() if key != "attention.scale"}),
            Tiny(
                "deci",
                "deci",
                n_layers=4,
                extra={
                    "attention.head_count": [4, 0, 0, 4],
                    "attention.head_count_kv": [2, 0, 0, 2],
                    "feed_forward_length": [96, 96, 0, 96],
                },
            ),
        )
    }
)
