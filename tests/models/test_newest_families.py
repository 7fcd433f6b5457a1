"""File keys of the newest architectures that the goldens do not cover."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.latents import LATENTS
from tests.cases.mtp import with_block
from tests.cases.newest import NEWEST
from tests.cases.tiny import byte_vocabulary, write_tiny
from woolly import Tokenizer
from woolly.errors import ModelError, PlanError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace, trace_draft
from woolly.plan.passes import inject_embeddings
from woolly.runtime import Batch, Options, get_backend


def traced(tiny, folder):
    with open_gguf(write_tiny(tiny, folder / "tiny.gguf")) as file:
        return trace(file)


def test_each_layer_of_ling_3_clamps_its_own_gates(tmp_path):
    tiny = LATENTS["bailingmoe3"]
    limits = {"swiglu_clamp_exp": [0.0, 7.0, 0.0, 9.0], "swiglu_clamp_shexp": [0.0, 0.0, 5.0, 0.0]}
    plan = traced(replace(tiny, extra=tiny.extra | limits), tmp_path)
    found = {op: [step.number("limit") for step in plan.steps if step.op == op] for op in ("moe", "glu")}
    assert found == {"moe": [7.0, 0.0, 9.0], "glu": [0.0, 0.0, 5.0, 0.0]}


def test_scalar_in_a_file_applies_to_all_layers(tmp_path):
    for name, key, one in (("hy_v4", "swiglu_clamp_exp", 0.4), ("qwen4exp", "attention.compress_ratios", 4)):
        tiny = NEWEST[name]
        plans = [traced(replace(tiny, extra=tiny.extra | {key: given}), tmp_path) for given in (one, [one] * 4)]
        assert plans[0].steps == plans[1].steps


def test_ling_3_without_a_decay_bound_is_rejected(tmp_path):
    tiny = LATENTS["bailingmoe3"]
    for wrong in ({"kda.safe_gate": False}, {"kda.gate_lower_bound": 0.5}):
        with pytest.raises(UnsupportedError, match="negative lower bound"):
            traced(replace(tiny, extra=tiny.extra | wrong), tmp_path)


def test_ling_3_mtp_block_has_attention(tmp_path):
    tiny = LATENTS["bailingmoe3"]
    more = {"attention.head_count_kv": [0, 0, 1, 0, 1], "nextn_predict_layers": 1}
    tiny = with_block(replace(tiny, n_layers=5, extra=tiny.extra | more))
    with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
        draft = trace_draft(file, trace(file))
    assert [step.op for step in draft.steps].count("attention") == 1
    assert not any(step.op == "delta_net" for step in draft.steps)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ple.layers": [1, 2]}, "one n-gram layer"),
        ({"ple.layer_multipliers": [3, 5]}, "has 2 numbers; expected 3"),
        ({"ple.head_offsets": [0, 41, 84, 231]}, "53 rows from 231 on of per_layer_token_embd.weight, which has 256"),
        ({"hyper_connection.count": 1}, "2 to 16 streams"),
        ({"attention.compress_ratios": [0, 0, 4]}, "an integer or 4 integers"),
        ({"attention.compress_ratios": [0, 0, 0, 99]}, "for each layer"),
        ({"attention.indexer.top_k": 10}, "a multiple of the block size"),
    ],
)
def test_invalid_flash_next_file_gives_a_one_line_error(wrong, sentence, tmp_path):
    tiny = NEWEST["qwen4exp"]
    with pytest.raises((ModelError, PlanError, UnsupportedError), match=sentence):
        traced(replace(tiny, extra=tiny.extra | wrong), tmp_path)


def test_ngrams_take_no_images(tmp_path):
    with pytest.raises(UnsupportedError, match="qwen4exp models do not support images yet"):
        inject_embeddings(traced(NEWEST["qwen4exp"], tmp_path), 64)


def test_hunyuan_4_clamps_only_the_routed_experts(tmp_path):
    plan = traced(NEWEST["hy_v4"], tmp_path)
    gates = {
        (step.op, step.text("act"), round(step.number("limit"), 6)) for step in plan.steps if step.op in ("moe", "glu")
    }
    assert gates == {("moe", "clipped", 0.4), ("glu", "silu", 0.0)}
    # Two layers choose for themselves, the third takes the choice of the second.
    assert [step.op for step in plan.steps].count("indexer") == 3
    assert sum(len(step.inputs) == 3 for step in plan.steps if step.op == "attention") == 4


def test_hunyuan_4_without_streams_is_rejected(tmp_path):
    tiny = NEWEST["hy_v4"]
    with pytest.raises(UnsupportedError, match="2 to 16 streams"):
        traced(replace(tiny, extra=tiny.extra | {"hyper_connection.count": 1}), tmp_path)


def test_glm_5_3_flash_selects_pools_in_layers_with_attention(tmp_path):
    tiny = NEWEST["glm5next"]
    plan = traced(tiny, tmp_path)
    ops = [step.op for step in plan.steps]
    assert (ops.count("indexer"), ops.count("compress"), ops.count("delta_net")) == (2, 2, 2)
    assert {step.integer("whole") for step in plan.steps if step.op == "indexer"} == {1}
    with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
        dense = trace(file, ctx=11)
    assert "indexer" not in {step.op for step in dense.steps} and dense.positions == 11


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, [10.0, 10.0]), ({"swiglu_clamp_exp": 3.0}, [3.0, 3.0]), ({"swiglu_clamp_shexp": [0.0] * 4}, [10.0, 0.0])],
)
def test_glm_5_3_flash_without_limits_has_those_of_the_released_model(more, expected, tmp_path):
    tiny = NEWEST["glm5next"]
    extra = {key: value for key, value in tiny.extra.items() if "clamp" not in key}
    plan = traced(replace(tiny, extra=extra | more), tmp_path)
    found = [next(step.number("limit") for step in plan.steps if step.op == op) for op in ("moe", "glu")]
    assert found == expected


def test_other_prefix_and_names_of_glm_5_3_flash_give_the_same_plan(tmp_path):
    tiny = NEWEST["glm5next"]

    def renamed(tiny, i):
        shapes = NEWEST["glm5next"].blocks(tiny, i).items()
        return {name.replace("indexer_compressor_", "indexer.kpool_"): shape for name, shape in shapes}

    extra = {key: value for key, value in tiny.extra.items() if not key.endswith((".kpool", "head_count_kv"))}
    extra |= {"attention.indexer.block_size": 4, "full_attention_interval": 2, "attention.head_count_kv": 1}
    listed = {"attention.head_count_kv": [0, 1, 0, 1], "attention.indexer.kpool": 4}
    extra["attention.recurrent_layers"] = [True, False, True, False]
    other = replace(tiny, architecture="glm5-next", extra=extra | listed, blocks=renamed)
    plans = [traced(one, tmp_path) for one in (tiny, other)]
    assert [step.op for step in plans[0].steps] == [step.op for step in plans[1].steps]


def test_chameleon_never_samples_image_tokens(tmp_path):
    tiny, large = NEWEST["chameleon"], np.random.RandomState(3).standard_normal((8300, 64))
    assert "clip" not in {step.op for step in traced(tiny, tmp_path).steps}  # the vocabulary has no image tokens
    many = replace(tiny, root={"output.weight": large, "token_embd.weight": large})
    with open_gguf(write_tiny(many, tmp_path / "large.gguf")) as file:
        program = get_backend("reference").compile(trace(file), file.tensors, Options())
        row = program.run(Batch.of([([1, 5], 0, [0])]), program.new_state(1))[0]
    assert (row[4:8196] < -3.3e38).all() and np.abs(row[:4]).min() > 0
    assert np.abs(row[8196:]).max() < 1e3 and row.argmax() not in range(4, 8196)


def test_hrm_text_with_another_number_of_passes_is_rejected(tmp_path):
    tiny = NEWEST["hrm_text"]
    with pytest.raises(ModelError, match="block_count is 12; expected 18"):
        traced(replace(tiny, extra=tiny.extra | {"hrm.h_cycles": 3}), tmp_path)


@pytest.mark.parametrize("architecture", ["glm5next", "glm5-next", "glm4"])
def test_undeclared_turn_tokens_end_answers_of_glm_5_3_flash(architecture):
    keys = byte_vocabulary() | {"general.architecture": architecture}
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"][:-2], "<|user|>", "<|observation|>"]
    n = len(keys["tokenizer.ggml.tokens"])
    ends = Tokenizer.from_metadata(keys).stop_ids & {n - 2, n - 1}
    assert ends == ({n - 2, n - 1} if architecture != "glm4" else set())


@pytest.mark.parametrize("n", [0, 65])
def test_nanbeige_with_a_wrong_number_of_loops_is_rejected(n, tmp_path):
    tiny = NEWEST["nanbeige"]
    with pytest.raises(ModelError, match=f"num_loops is {n}; expected an integer from 1 to 64"):
        traced(replace(tiny, extra={"num_loops": n}), tmp_path)


def test_nanbeige_has_k_and_v_of_each_pass(tmp_path):
    plan = traced(NEWEST["nanbeige"], tmp_path)
    assert len(plan.state) == 6 and [step.op for step in plan.steps].count("attention") == 6
    assert len({weight.name for step in plan.steps for weight in step.weights if ".attn_q." in weight.name}) == 2


def test_maple_rows_see_one_position_more_than_the_key_says(tmp_path):
    tiny = NEWEST["maple"]
    plan = traced(tiny, tmp_path)
    assert {step.integer("window") for step in plan.steps if step.op == "attention"} == {8, 0}
    assert {step.op for step in plan.steps if "rope" in step.op} == {"rope"}
    other = {"rope.dimension_count": 0, "rope.dimension_count_swa": 8}
    assert traced(replace(tiny, n_rot=0, extra=tiny.extra | other), tmp_path).steps == plan.steps
