"""LoRA adapters of experts: rows of requests that want one go through changed experts beside rows that do not."""

from contextlib import ExitStack

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import tensors, write_tiny
from tests.engine.test_adapters import PARAMS, PROMPT, write_lora
from woolly import LLM, ModelError
from woolly.convert.lora import merge_lora
from woolly.gguf import open_gguf

# Weights beside the chosen ones' result, and before it; one without a gate.
MODELS = ("mixtral", "llama4", "nemotron_h_moe")
RANK = 3


def lora(name, seed, roles=("gate", "up", "down")):
    """Pairs for all experts, large enough to change most tokens, and for one matrix of all rows."""
    random, pairs = np.random.RandomState(seed), {}
    for base, whole in tensors(FAMILIES[name]).items():
        if any(base.endswith(f"ffn_{role}_exps.weight") for role in roles) or base.endswith("attn_q.weight"):
            *experts, rows, columns = whole.shape
            pairs[f"{base}.lora_a"] = random.randn(*experts, RANK, columns).astype(np.float32) / 8
            pairs[f"{base}.lora_b"] = random.randn(*experts, rows, RANK).astype(np.float32) / 3
    return pairs


def write(folder, name, seed, **more):
    keys = {"general.architecture": FAMILIES[name].architecture}
    return write_lora(folder / f"{name}-{seed}.gguf", lora(name, seed, **more), **keys)


def merged(folder, model, files):
    """Logits of a model whose weights have adapters in them."""
    with ExitStack() as stack:
        whole, *adapters = (stack.enter_context(open_gguf(path)) for path in (model, *files))
        merge_lora(whole, [(one, 1.0) for one in adapters], folder / "merged.gguf", threads=1)
    with LLM(folder / "merged.gguf", ctx=256, backend="reference") as opened:
        return opened.logits(PROMPT)


@pytest.mark.parametrize("name", MODELS)
def test_experts_with_an_adapter_equal_merged_weights(name, tmp_path):
    model = write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")
    files = {"one": write(tmp_path, name, 0), "two": write(tmp_path, name, 1)}
    want = merged(tmp_path, model, files.values())
    for backend in ("reference", "cpu"):
        with LLM(model, ctx=256, adapters=files, backend=backend, kv_type="f32", threads=2) as opened:
            error = np.linalg.norm(opened.logits(PROMPT) - want, axis=1) / np.linalg.norm(want, axis=1)
            assert np.median(error) < 1e-4  # a router near a tie may choose otherwise


def test_adapter_rows_share_steps_with_others_exactly(tmp_path):
    model = write_tiny(FAMILIES["mixtral"], tmp_path / "tiny.gguf")
    files = {"one": write(tmp_path, "mixtral", 0), "two": write(tmp_path, "mixtral", 1, roles=("down",))}
    wanted = [{}, {"one": 1}, {"two": 1}, {"one": 0.5, "two": -1}]
    with LLM(model, ctx=256) as plain:
        alone = plain.generate(PROMPT, PARAMS, logprobs=3)
    with LLM(model, ctx=256, adapters=files, threads=2) as opened:
        singly = [opened.generate(PROMPT, PARAMS, adapters=one, logprobs=3) for one in wanted]
        assert (singly[0].token_ids, singly[0].logprobs) == (alone.token_ids, alone.logprobs)
        assert len({one.token_ids for one in singly}) == len(wanted)
    with LLM(model, ctx=256, adapters=files, threads=1, chunk=7) as opened:
        groups = [opened.prepare(PROMPT, PARAMS, adapters=one, logprobs=3)[0] for one in wanted]
        together = opened.driver.complete(groups)
        assert [(one.token_ids, one.logprobs) for one in together] == [(one.token_ids, one.logprobs) for one in singly]


def test_adapter_pairs_that_match_no_expert_are_rejected(tmp_path):
    model = write_tiny(FAMILIES["mixtral"], tmp_path / "tiny.gguf")
    base, shape = "blk.0.ffn_up_exps.weight", tensors(FAMILIES["mixtral"])["blk.0.ffn_up_exps.weight"].shape
    pair = {f"{base}.lora_a": np.ones((shape[0], 2, 8), np.float32)}
    pair[f"{base}.lora_b"] = np.ones((shape[0], shape[1], 2), np.float32)
    with pytest.raises(ModelError, match=r"changes 'blk\.0\.ffn_up_exps\.weight', which is not a matrix"):
        LLM(model, ctx=64, adapters=[write_lora(tmp_path / "a.gguf", pair)])
    pair[f"{base}.lora_a"] = np.ones((shape[0] + 1, 2, shape[2]), np.float32)
    with pytest.raises(ModelError, match="belong to different experts"):
        LLM(model, ctx=64, adapters=[write_lora(tmp_path / "b.gguf", pair)])
