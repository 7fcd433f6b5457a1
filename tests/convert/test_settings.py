"""Settings of config.json: each is written, harmless, or an error that names it."""

import json

import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.cli.terminal import woolly
from tests.convert.folders import checkpoint_of, safetensors
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.errors import ModelError
from woolly.gguf import open_gguf


@pytest.fixture(autouse=True)
def unproved(monkeypatch):
    plain = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", plain)


def folder_of(name, path, **changes):
    with open_gguf(write_tiny(FAMILIES[name], path / "tiny.gguf")) as file:
        folder = checkpoint_of(file, path / "folder")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def metadata_of(name, path, **changes):
    return plan_conversion(open_checkpoint(folder_of(name, path, **changes))).metadata


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("gemma2", {"hidden_activation": "gelu"}),
        ("arcee", {"hidden_act": "silu"}),
        ("starcoder2", {"hidden_act": "silu"}),
        ("falcon", {"activation": "relu"}),
        ("phi2", {"hidden_act": "gelu"}),
        ("afmoe", {"mup_enabled": False}),
        ("gemma3", {"use_bidirectional_attention": True}),
        ("gemma3n", {"activation_sparsity_pattern": [0.0] * 12}),
        ("gemma3n", {"altup_correct_scale": False}),
        ("deepseek-v3", {"rope_interleave": False}),
        ("gpt-oss", {"swiglu_alpha": 1.0}),
        ("olmoe", {"clip_qkv": 1.0}),
        ("llama4", {"use_qk_norm": False}),
        ("phimoe", {"sliding_window": 8}),
        ("phimoe", {"num_experts_per_tok": 4}),
        ("phimoe", {"router_jitter_noise": 0.02}),
        ("minimax-01", {"layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"]}),
        ("minimax-m3", {"rotary_dim": 2}),
        ("deepseek-v2-lite", {"norm_topk_prob": True}),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "gelu"}, "moe_num_experts": 4, "ffn_hidden_size": 32}}),
        ("afmoe", {"layer_types": ["full_attention", *["sliding_attention"] * 4]}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False}}),
        ("llama", {"a_setting_of_tomorrow": 3}),
    ],
)
def test_a_setting_that_the_file_would_lose_is_rejected_by_name(name, changes, tmp_path):
    with pytest.raises(ModelError, match=rf"config.json: ({'|'.join(changes)}|truncate|name) is "):
        metadata_of(name, tmp_path, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "key", "value"),
    [
        ("starcoder2", {"sliding_window": 8}, "attention.sliding_window", 8),
        ("mistral3", {"sliding_window": 8}, "attention.sliding_window", 8),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "layer_types": None},
            "attention.sliding_window",
            8,
        ),
        ("qwen3moe", {"norm_topk_prob": False}, "expert_weights_norm", False),
        ("qwen3next", {"norm_topk_prob": False}, "expert_weights_norm", False),
        ("lfm2moe", {"norm_topk_prob": False}, "expert_weights_norm", False),
        ("gemma2", {"attn_logit_softcapping": None}, "attn_logit_softcapping", 0.0),
        ("gemma4", {"final_logit_softcapping": None}, "final_logit_softcapping", 0.0),
        ("falcon-mamba", {"mixer_rms_eps": 0.5}, "ssm.dt_b_c_rms_epsilon", 0.5),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "attention_factor": 0.7}},
            "rope.scaling.yarn_attn_factor",
            0.7,
        ),
    ],
)
def test_a_setting_that_has_a_key_is_written(name, changes, key, value, tmp_path):
    metadata = metadata_of(name, tmp_path, **changes)
    assert metadata[f"{metadata['general.architecture']}.{key}"] == value


def test_groups_of_experts_without_effect_are_left_out(tmp_path):
    greedy = {"n_group": 2, "topk_group": 1, "topk_method": "greedy"}
    assert "deepseek2.expert_group_count" not in metadata_of("deepseek-v2-lite", tmp_path, **greedy)
    limited = metadata_of("deepseek-v2-lite", tmp_path, **greedy | {"topk_method": "group_limited_greedy"})
    assert limited["deepseek2.expert_group_count"] == 2


def test_a_setting_that_is_off_or_harmless_is_accepted(tmp_path):
    metadata_of("llama", tmp_path, a_setting_of_tomorrow=False, attention_dropout=0.1, unsloth_version="2026.1", foo={})


def test_an_unknown_setting_may_be_ignored(tmp_path):
    folder = folder_of("llama", tmp_path, a_setting_of_tomorrow=3)
    plan = plan_conversion(open_checkpoint(folder), ignored=["a_setting_of_tomorrow"])
    write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)


def test_the_command_ignores_settings_by_name(tmp_path):
    folder = folder_of("llama", tmp_path, a_setting_of_tomorrow=3)
    arguments = ("convert", str(folder), str(tmp_path / "out.gguf"), "--dry-run")
    with pytest.raises(ModelError, match="add --ignore-setting a_setting_of_tomorrow"):
        woolly(*arguments)
    woolly(*arguments, "--ignore-setting", "a_setting_of_tomorrow")


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("name", "rope", "key", "value"),
    [
        ("deepseek-v3", {"mscale": 1.0, "mscale_all_dim": 1.0}, "rope.scaling.yarn_attn_factor", None),
        ("deepseek-v3", {"mscale": 0.5, "mscale_all_dim": 1.0}, "rope.scaling.yarn_attn_factor", 0.939119),
        ("deepseek-v3", {"mscale_all_dim": 1.0}, "rope.scaling.yarn_attn_factor", 1.138629),
        ("mistral3", {"mscale": 1.0, "mscale_all_dim": 1.0}, "rope.scaling.yarn_log_multiplier", 1.0),
        ("mistral3", {"mscale": 2.0, "mscale_all_dim": 1.0}, "rope.scaling.yarn_log_multiplier", None),
        ("mistral3", {"mscale": 2.0, "mscale_all_dim": 1.0}, "rope.scaling.yarn_attn_factor", 1.121752),
    ],
)
def test_the_attention_factor_of_yarn_is_that_of_transformers(name, rope, key, value, tmp_path):
    metadata = metadata_of(name, tmp_path, rope_parameters=YARN | rope)
    found = metadata.get(f"{metadata['general.architecture']}.{key}")
    assert found == (value if value is None else pytest.approx(value, rel=1e-5))


@pytest.mark.parametrize(("factor", "has_head"), [(1, False), (2, True)])
def test_a_head_that_differs_from_the_tied_table_is_kept(factor, has_head, tmp_path):
    folder = folder_of("llama", tmp_path, tie_word_embeddings=True)
    stored = {name: one.array() for name, one in open_checkpoint(folder).tensors.items()}
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] * factor
    (folder / "model.safetensors").write_bytes(safetensors(stored))
    assert ("output.weight" in plan_conversion(open_checkpoint(folder)).tensors) is has_head


def test_a_size_that_does_not_fit_is_reported_without_our_source_lines(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.19}
    with pytest.raises(ModelError, match=r"config\.json does not match the tensors of a llama model: rope") as caught:
        metadata_of("llama", tmp_path, rope_parameters=rope)
    assert ".py:" not in str(caught.value)


@pytest.mark.parametrize("infinity", [float("inf"), "Infinity", {"__float__": "Infinity"}])
def test_a_limit_of_infinity_is_no_limit(infinity, tmp_path):
    metadata_of("granitehybrid", tmp_path, time_step_limit=[0.0, infinity])


def ropes(full, sliding):
    return {
        "full_attention": {"rope_type": "default", **full},
        "sliding_attention": {"rope_type": "default", **sliding},
    }


def test_windows_may_have_a_rope_base_of_their_own(tmp_path):
    given = ropes({"rope_theta": 5e5}, {"rope_theta": 1e4})
    metadata = metadata_of("olmo3", tmp_path, rope_parameters=given)
    assert (metadata["olmo2.rope.freq_base"], metadata["olmo2.rope.freq_base_swa"]) == (5e5, 1e4)
    metadata_of("cohere2", tmp_path, rope_parameters=ropes({"rope_theta": 10000}, {"rope_theta": 10000.0}))


def test_ropes_of_layers_that_the_file_cannot_tell_apart_are_rejected(tmp_path):
    part = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    with pytest.raises(ModelError, match=r"partial_rotary_factor in rope_parameters is 0\.5 and 1\.0"):
        metadata_of("mimo2", tmp_path, rope_parameters=ropes(part, part | {"partial_rotary_factor": 1.0}))
