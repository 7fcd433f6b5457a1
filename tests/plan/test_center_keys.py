"""Keys that are kept without their bias give the scores that they give with it, and 4 bits are enough for them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, YARN, write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan.passes import FUSIONS, center_keys, fuse, fuse_attention, keeps_biases
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.cpu.program import CpuProgram

IDS = np.random.RandomState(7).randint(0, 264, 200).tolist()
BIASED = replace(TINY["qwen2"], n_kv_heads=2, head_dim=32, factors={"attn_k.bias": 150.0})
MODELS = {
    "neox": BIASED,
    "adjacent": replace(TINY["llama-tied-bias"], factors={"attn_k.bias": 150.0}),
    "yarn": replace(BIASED, extra=YARN),
    "divisors": replace(TINY["llama3-rope"], qkv_bias=True, factors={"attn_k.bias": 150.0}),
}


def logits(program):
    """Logits of the latest rows of two splits, after the first rows."""
    state = program.new_state(8)
    program.run(Batch.of([(IDS[:150], 0, range(7))]), state)
    return program.run(Batch.of([(IDS[150:], 150, range(7))], range(50)), state).copy()


@pytest.mark.parametrize("name", MODELS)
def test_bias_left_out_of_keys_is_added_to_scores(name, tmp_path):
    with open_gguf(write_tiny(MODELS[name], tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        centered = fuse(plan, (fuse_attention, center_keys))
        assert keeps_biases(fuse_attention(plan)) and not keeps_biases(centered)
        assert [step.op for step in centered.steps if step.by_role("k_bias")] == ["store", "attend"] * 2
        expected, got = (
            logits(get_backend("reference").compile(one, file.tensors, Options())) for one in (plan, centered)
        )
        np.testing.assert_allclose(got, expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_4_bits_of_centered_keys_lose_little(name, tmp_path):
    with open_gguf(write_tiny(MODELS[name], tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(threads=2, kv_type="q4/f32")
        exact = logits(CpuProgram(plan, file.tensors, Options(threads=2, kv_type="f32")))
        biased, centered = (
            np.sqrt(np.mean((logits(CpuProgram(plan, file.tensors, options, passes)) - exact) ** 2))
            for passes in (FUSIONS, None)
        )
        assert centered < 0.25 * exact.std() < 0.5 * biased


@pytest.mark.parametrize("tiny", [TINY["llama"], TINY["qwen3"], FAMILIES["qwen2vl"]], ids=lambda tiny: tiny.name)
def test_other_keys_are_unchanged(tiny, tmp_path):
    with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
        plan = fuse_attention(trace(file))
        assert center_keys(plan) == plan
        assert keeps_biases(plan) == (tiny.name == "qwen2vl")  # rows of images turn by other positions


def test_keys_borrowed_by_a_draft_are_unchanged(tmp_path):
    with open_gguf(write_tiny(BIASED, tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
    looks = next(step for step in fuse_attention(plan).steps if step.op == "attend")  # at the first layer
    lent = fuse_attention(replace(plan, draft=replace(plan, steps=(looks,), borrows=True)))
    centered = center_keys(lent)
    assert [step.op for step in centered.steps if step.by_role("k_bias")] == ["store", "attend"]
    assert (
        keeps_biases(centered)
        and centered.steps[: lent.steps.index(looks) + 1] == lent.steps[: lent.steps.index(looks) + 1]
    )
