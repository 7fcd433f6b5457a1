"""Tiny random models with recurrent layers: more heads of v than of k, several groups, every kind of layer."""

from __future__ import annotations

from typing import Any

from tests.cases.tiny import GRANITE, Tiny, metadata

Shapes = dict[str, tuple[int, ...]]


def ssm(inner: int, state: int, heads: int, groups: int | None) -> dict[str, Any]:
    out = {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": heads}
    return out if groups is None else out | {"ssm.group_count": groups}


def _norms(tiny: Tiny, *names: str) -> Shapes:
    return {f"{name}.weight": (tiny.width,) for name in names}


def _attention(tiny: Tiny, i: int, *, gate: bool = False, qk_norm: bool = False) -> Shapes:
    kv = metadata(tiny)["attention.head_count_kv"]
    q, kv = tiny.n_heads * tiny.head_dim, (kv[i] if isinstance(kv, list) else kv) * tiny.head_dim
    out: Shapes = {"attn_q.weight": (2 * q if gate else q, tiny.width), "attn_output.weight": (tiny.width, q)}
    out |= {f"attn_{x}.weight": (kv, tiny.width) for x in "kv"}
    return out | ({f"attn_{x}_norm.weight": (tiny.head_dim,) for x in "qk"} if qk_norm else {})


def _mlp(tiny: Tiny, ffn: int) -> Shapes:
    return {f"ffn_{x}.weight": (ffn, tiny.width) for x in ("gate", "up")} | {"ffn_down.weight": (tiny.width, ffn)}


def _experts(tiny: Tiny, *, gated: bool = True, width: int = 0, select: bool = False) -> Shapes:
    n, inner, width = tiny.experts, tiny.expert_ffn or tiny.ffn, width or tiny.width
    names = ("gate", "up") if gated else ("up",)
    out: Shapes = {"ffn_gate_inp.weight": (n, tiny.width)}
    out |= {f"ffn_{x}_exps.weight": (n, inner, width) for x in names} | {"ffn_down_exps.weight": (n, width, inner)}
    if tiny.shared:
        out |= {f"ffn_{x}_shexp.weight": (tiny.shared, tiny.width) for x in names}
        out["ffn_down_shexp.weight"] = (tiny.width, tiny.shared)
    return out | ({"exp_probs_b.bias": (n,)} if select else {})


def _mamba2(tiny: Tiny, *, norm: bool = True) -> Shapes:
    keys = metadata(tiny)
    inner, state, heads, groups = (
        keys[f"ssm.{x}"] for x in ("inner_size", "state_size", "time_step_rank", "group_count")
    )
    mixed = inner + 2 * groups * state
    out: Shapes = {"ssm_in.weight": (inner + mixed + heads, tiny.width), "ssm_out.weight": (tiny.width, inner)}
    out |= {"ssm_conv1d.weight": (mixed, 4), "ssm_conv1d.bias": (mixed,), "ssm_dt.bias": (heads,)}
    out |= {"ssm_a": (heads, 1), "ssm_d": (heads, 1)}
    return out | ({"ssm_norm.weight": (groups, inner // groups)} if norm else {})


def _mamba(tiny: Tiny, *, norms: bool = False) -> Shapes:
    keys = metadata(tiny)
    inner, state, rank = (keys[f"ssm.{x}"] for x in ("inner_size", "state_size", "time_step_rank"))
    out: Shapes = {"ssm_in.weight": (2 * inner, tiny.width), "ssm_conv1d.weight": (inner, 4)}
    out |= {"ssm_conv1d.bias": (inner,), "ssm_x.weight": (rank + 2 * state, inner), "ssm_dt.weight": (inner, rank)}
    out |= {"ssm_dt.bias": (inner,), "ssm_a": (inner, state), "ssm_d": (inner,), "ssm_out.weight": (tiny.width, inner)}
    return out | ({f"ssm_{x}_norm.weight": (rank if x == "dt" else state,) for x in ("dt", "b", "c")} if norms else {})


def _qwen(tiny: Tiny, i: int) -> Shapes:
    keys = metadata(tiny)
    head, k_heads, heads = keys["ssm.state_size"], keys["ssm.group_count"], keys["ssm.time_step_rank"]
    wide, inner = 2 * k_heads * head + heads * head, heads * head
    out = _norms(tiny, "attn_norm", "post_attention_norm")
    if i == tiny.n_layers - 1 and "nextn_predict_layers" in keys:
        out |= {"nextn.eh_proj.weight": (tiny.width, 2 * tiny.width)} | _norms(tiny, "nextn.enorm", "nextn.hnorm")
        return out | _attention(tiny, i, gate=True, qk_norm=True) | _mlp(tiny, tiny.ffn)
    if (i + 1) % 4 == 0:
        out |= _attention(tiny, i, gate=True, qk_norm=True)
    else:
        out |= {"attn_qkv.weight": (wide, tiny.width), "attn_gate.weight": (inner, tiny.width)}
        out |= {"ssm_conv1d.weight": (wide, 4), "ssm_dt.bias": (heads,), "ssm_a": (heads,)}
        out |= {"ssm_norm.weight": (head,), "ssm_out.weight": (tiny.width, inner)}
        ba = {"ssm_ba": 2 * heads} if tiny.architecture == "qwen3next" else {"ssm_beta": heads, "ssm_alpha": heads}
        out |= {f"{name}.weight": (n, tiny.width) for name, n in ba.items()}
    if tiny.experts:
        return out | _experts(tiny) | {"ffn_gate_inp_shexp.weight": (tiny.width,)}
    return out | _mlp(tiny, tiny.ffn)


def _qwen_first(tiny: Tiny, i: int) -> Shapes:
    """The tensors of the first files: q, k, v and z are one."""
    out = _qwen(tiny, i)
    if "attn_qkv.weight" in out:
        both = out.pop("attn_qkv.weight")[0] + out.pop("attn_gate.weight")[0]
        out["ssm_in.weight"] = (both, tiny.width)
    return out


def _lfm2(tiny: Tiny, i: int) -> Shapes:
    out = _norms(tiny, "attn_norm", "ffn_norm")
    if metadata(tiny)["attention.head_count_kv"][i]:
        out |= _attention(tiny, i, qk_norm=True)
    else:
        out |= {"shortconv.conv.weight": (tiny.width, 3), "shortconv.in_proj.weight": (3 * tiny.width, tiny.width)}
        out["shortconv.out_proj.weight"] = (tiny.width, tiny.width)
    return out | (_experts(tiny, select=True) if tiny.experts and i >= tiny.dense else _mlp(tiny, tiny.ffn))


def _granite(tiny: Tiny, i: int) -> Shapes:
    mixer = _attention(tiny, i) if metadata(tiny)["attention.head_count_kv"][i] else _mamba2(tiny)
    rest = _experts(tiny) if tiny.experts else _mlp(tiny, tiny.ffn)
    return _norms(tiny, "attn_norm", "ffn_norm") | mixer | rest


def _nemotron(tiny: Tiny, i: int) -> Shapes:
    keys, out = metadata(tiny), _norms(tiny, "attn_norm")
    if keys["attention.head_count_kv"][i]:
        return out | _attention(tiny, i)
    ffn = keys["feed_forward_length"][i]
    if not ffn:
        return out | _mamba2(tiny)
    if not tiny.experts:
        return out | {"ffn_up.weight": (ffn, tiny.width), "ffn_down.weight": (tiny.width, ffn)}
    latent = keys.get("moe_latent_size", 0)
    if latent:
        out |= {"ffn_latent_down.weight": (latent, tiny.width), "ffn_latent_up.weight": (tiny.width, latent)}
    return out | _experts(tiny, gated=False, width=latent, select=True)


def _falcon(tiny: Tiny, i: int) -> Shapes:
    out = _norms(tiny, "attn_norm") | {"ffn_norm": (tiny.width,)}
    return out | _attention(tiny, i) | _mamba2(tiny) | _mlp(tiny, tiny.ffn)


def _jamba(tiny: Tiny, i: int) -> Shapes:
    mixer = _attention(tiny, i) if metadata(tiny)["attention.head_count_kv"][i] else _mamba(tiny, norms=True)
    return _norms(tiny, "attn_norm", "ffn_norm") | mixer | (_experts(tiny) if i % 2 else _mlp(tiny, tiny.ffn))


def _minimax(tiny: Tiny, i: int) -> Shapes:
    q = tiny.n_heads * tiny.head_dim
    out = _norms(tiny, "attn_norm", "ffn_norm") | _experts(tiny)
    if (i + 1) % 2 == 0:
        return out | _attention(tiny, i)
    out |= {"attn_norm_2.weight": (q,), "attn_qkv.weight": (3 * q, tiny.width), "attn_gate.weight": (q, tiny.width)}
    return out | {"attn_output.weight": (tiny.width, q)}


def _plamo2(tiny: Tiny, i: int) -> Shapes:
    """Names of norms inside and after blocks have no suffix."""
    keys, width = metadata(tiny), tiny.width
    inner, state, heads = (keys[f"ssm.{x}"] for x in ("inner_size", "state_size", "time_step_rank"))
    out = _norms(tiny, "attn_norm", "ffn_norm") | {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
    out |= {"ffn_up.weight": (2 * tiny.ffn, width), "ffn_down.weight": (width, tiny.ffn)}
    if n := keys["attention.head_count"][i]:
        kv, d = keys["attention.head_count_kv"][i], tiny.head_dim
        out |= {"attn_qkv.weight": ((n + 2 * kv) * d, width), "attn_output.weight": (width, n * d)}
        return out | {"attn_q_norm.weight": (n, d), "attn_k_norm.weight": (kv, d)}
    out |= {"ssm_in.weight": (2 * inner, width), "ssm_conv1d.weight": (inner, 4), "ssm_out.weight": (width, inner)}
    out |= {"ssm_x.weight": (2 * state + 64, inner), "ssm_dt.weight": (heads, 64), "ssm_dt.bias": (heads,)}
    out |= {"ssm_b_norm": (state,), "ssm_c_norm": (state,), "ssm_dt_norm": (64,)}
    return out | {"ssm_a": (heads,), "ssm_d": (heads,)}


NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}
NEXT = ssm(64, 16, 4, 2) | {"full_attention_interval": 4}  # a model of text alone: its positions have no sections
QWEN = NEXT | {"rope.dimension_sections": [2, 1, 1, 0]}
NEMOTRON = ssm(128, 16, 8, 2) | {"attention.head_count_kv": [0, 2, 0, 0, 0], "attention.layer_norm_epsilon": 1e-5}

HYBRIDS = {
    tiny.name: tiny
    for tiny in (
        Tiny(
            "qwen35",
            "qwen35",
            n_layers=6,
            n_rot=8,
            tied=False,
            blocks=_qwen,
            extra=QWEN | {"nextn_predict_layers": 1},
        ),
        Tiny(
            "qwen35moe", "qwen35moe", n_layers=4, n_rot=8, experts=4, expert_ffn=24, shared=40, blocks=_qwen, extra=QWEN
        ),
        Tiny(
            "qwen3next-first",
            "qwen3next",
            n_layers=4,
            n_rot=8,
            experts=4,
            expert_ffn=24,
            shared=40,
            blocks=_qwen_first,
            extra=NEXT,
        ),
        Tiny(
            "qwen3next", "qwen3next", n_layers=4, n_rot=8, experts=4, expert_ffn=24, shared=40, blocks=_qwen, extra=NEXT
        ),
        Tiny(
            "lfm2",
            "lfm2",
            n_layers=3,
            blocks=_lfm2,
            norm_name="token_embd_norm",
            extra={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0]},
        ),
        Tiny(
            "lfm2moe",
            "lfm2moe",
            n_layers=3,
            dense=1,
            experts=4,
            expert_ffn=24,
            blocks=_lfm2,
            norm_name="token_embd_norm",
            extra={
                "shortconv.l_cache": 3,
                "attention.head_count_kv": [0, 2, 0],
                "expert_gating_func": 2,
                "leading_dense_block_count": 1,
            },
        ),
        Tiny(
            "granitehybrid",
            "granitehybrid",
            n_layers=3,
            experts=4,
            ffn=32,
            shared=24,
            blocks=_granite,
            extra=GRANITE
            | ssm(128, 16, 8, 1)
            | {"attention.head_count_kv": [0, 2, 0], "rope.scaling.finetuned": False},
        ),
        Tiny(
            "nemotron_h",
            "nemotron_h",
            n_layers=5,
            tied=False,
            blocks=_nemotron,
            extra=NEMOTRON | {"feed_forward_length": [0, 0, 96, 0, 96]},
        ),
        Tiny(
            "nemotron_h_moe",
            "nemotron_h_moe",
            n_layers=5,
            tied=False,
            experts=4,
            expert_ffn=24,
            shared=40,
            blocks=_nemotron,
            extra=NEMOTRON
            | {
                "feed_forward_length": [0, 0, 24, 0, 24],
                "expert_shared_count": 1,
                "expert_weights_norm": True,
                "expert_weights_scale": 2.5,
            },
        ),
        Tiny("falcon-h1", "falcon-h1", tied=False, blocks=_falcon, extra=ssm(96, 16, 6, 2)),
        Tiny(
            "mamba",
            "mamba",
            blocks=lambda t, i: _norms(t, "attn_norm") | _mamba(t),
            extra=NO_HEADS | ssm(128, 16, 4, None),
        ),
        Tiny(
            "falcon-mamba",
            "mamba",
            tied=False,
            blocks=lambda t, i: _norms(t, "attn_norm") | _mamba(t),
            extra=NO_HEADS | ssm(128, 16, 4, None) | {"ssm.dt_b_c_rms": True},
        ),
        Tiny(
            "mamba2",
            "mamba2",
            blocks=lambda t, i: _norms(t, "attn_norm") | _mamba2(t),
            extra=NO_HEADS | ssm(128, 16, 8, 1),
        ),
        Tiny(
            "jamba",
            "jamba",
            n_layers=4,
            experts=4,
            ffn=48,
            tied=False,
            blocks=_jamba,
            extra=ssm(128, 16, 4, None) | {"attention.head_count_kv": [0, 2, 0, 2]},
        ),
        # All of a head turns: transformers knows no part of it.
        Tiny(
            "minimax-01",
            "minimax-01",
            n_layers=3,
            ffn=32,
            experts=4,
            tied=False,
            blocks=_minimax,
            extra={"full_attention_interval": 2, "residual_scale": 3.5},
        ),
        Tiny(
            "plamo2",
            "plamo2",
            n_layers=4,
            blocks=_plamo2,
            extra=ssm(64, 16, 4, 0) | {"attention.head_count": [0, 4, 0, 4], "attention.head_count_kv": [0, 2, 0, 2]},
        ),
    )
}
