"""LoRA adapters: each request takes as much of each as it wants, beside requests that take none."""

import numpy as np
import pytest

from tests.cases.tiny import TINY, tensors, write_tiny
from woolly import LLM, ModelError, RequestError, SamplingParams, StoreError
from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType

PROMPT = list(range(40, 110))
PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
RANK, ALPHA = 4, 6.0
BASES = [f"blk.{i}.{name}.weight" for i in range(2) for name in ("attn_q", "attn_v", "ffn_up", "attn_output")]


def lora(seed):
    """Pairs that are large enough to change most tokens."""
    random = np.random.RandomState(seed)
    whole = tensors(TINY["llama"])
    pairs = {}
    for base in (*BASES, "output.weight"):
        rows, columns = whole[base].shape
        pairs[f"{base}.lora_a"] = random.randn(RANK, columns).astype(np.float32) / 8
        pairs[f"{base}.lora_b"] = random.randn(rows, RANK).astype(np.float32) / 2
    return pairs


def write_lora(path, pairs, **keys):
    writer = GGUFWriter(path)
    known = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama"}
    for key, value in (known | {"adapter.lora.alpha": ALPHA} | keys).items():
        writer.add(key, value)
    for name, array in pairs.items():
        writer.add_tensor(name, array, GGMLType.F32)
    writer.write()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def model(folder):
    return write_tiny(TINY["llama"], folder / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(folder, model):
    files = {name: write_lora(folder / f"{name}.gguf", lora(seed)) for seed, name in enumerate(("first", "second"))}
    with LLM(model, ctx=256, adapters=files) as opened:
        yield opened


@pytest.fixture(scope="module")
def merged(folder):
    """Logits of a model whose weights have an adapter in them."""

    def logits(scales):
        whole = tensors(TINY["llama"])
        for seed, scale in enumerate(scales):
            pairs = lora(seed)
            for base in (*BASES, "output.weight"):
                whole[base] = whole[base] + scale * ALPHA / RANK * pairs[f"{base}.lora_b"] @ pairs[f"{base}.lora_a"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.cases.tiny.tensors", lambda tiny: whole)
            path = write_tiny(TINY["llama"], folder / "merged.gguf")
        with LLM(path, ctx=256, backend="reference") as opened:
            return opened.logits(PROMPT)

    return logits


def logprobs(llm, adapters):
    request = llm.generate(PROMPT, PARAMS, adapters=adapters, logprobs=5, prompt_logprobs=3)
    return request.token_ids, request.logprobs, request.prompt_logprobs


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_adapter_equals_its_merged_weights(folder, model, merged, backend):
    files = [write_lora(folder / f"{name}.gguf", lora(seed)) for seed, name in enumerate(("one", "two"))]
    with LLM(model, ctx=256, adapters=files, backend=backend, kv_type="f32") as opened:
        np.testing.assert_allclose(opened.logits(PROMPT), merged((1.0, 1.0)), rtol=0, atol=2e-3)
        wanted = merged((0.0, -0.5))[-1]
        top = opened.generate(PROMPT, PARAMS, adapters={"two": -0.5}, max_tokens=1, logprobs=3).logprobs[0]
        assert top.token == int(np.argmax(wanted))
        expected = wanted.astype(np.float64) - np.log(np.exp(wanted.astype(np.float64)).sum())
        assert top.logprob == pytest.approx(expected.max(), abs=2e-3)


def test_request_without_adapters_equals_the_base_model_exactly(llm, model):
    with LLM(model, ctx=256) as plain:
        assert logprobs(llm, {}) == logprobs(plain, None)
    assert logprobs(llm, None) == logprobs(llm, {"first": 1, "second": 1.0})
    assert logprobs(llm, None)[0] != logprobs(llm, {})[0]


def test_requests_with_different_adapters_share_steps_and_no_pages(llm):
    wanted = [{}, {"first": 1}, {"second": 1}, {"first": 0.5, "second": -1}, {"first": 1}]
    alone = [llm.generate(PROMPT, PARAMS, adapters=one).token_ids for one in wanted]
    assert len(set(alone)) == 4
    groups = [llm.prepare(PROMPT, PARAMS, adapters=one)[0] for one in wanted]
    together = llm.driver.complete(groups)
    assert [completion.token_ids for completion in together] == alone
    (last,) = groups[-1]
    assert last.prefix.hit_tokens == 64
    stranger = llm.prepare(PROMPT, PARAMS, adapters={"first": 0.25})
    llm.driver.complete(stranger)
    assert stranger[0][0].prefix.hit_tokens == 0


def test_speculation_and_chats_take_adapters(llm, folder, model):
    files = {"first": folder / "first.gguf"}
    with LLM(model, ctx=256, adapters=files, speculation="prompt_lookup", chat_template="{{ messages }}") as fast:
        assert fast.generate(PROMPT, PARAMS).token_ids == llm.generate(PROMPT, PARAMS, adapters={"first": 1}).token_ids
        texts = {fast.chat("hi", PARAMS, adapters=one).text for one in ({}, {"first": 1.0})}
        assert len(texts) == 2


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"third": 1}, "unknown adapter 'third'; expected one of first, second"),
        ({"first": "much"}, "scale of adapter 'first' is 'much'"),
        ({"first": float("inf")}, "scale of adapter 'first' is inf"),
        (["first"], "expected a mapping of names to scales"),
    ],
)
def test_wrong_scales_are_rejected_by_name(llm, wanted, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(PROMPT, PARAMS, adapters=wanted)


def broken(pairs=None, **keys):
    return (lora(0) | (pairs or {})), keys


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (broken(**{"general.type": "model"}), "not a LoRA adapter"),
        (broken(**{"general.architecture": "qwen2"}), "is for 'qwen2', but the model is 'llama'"),
        (broken(**{"adapter.alora.invocation_tokens": [1]}), "invocation tokens"),
        (
            broken({"blk.0.attn_norm.weight": np.ones(64, np.float32)}),
            "unsupported tensor 'blk.0.attn_norm.weight'; expected pairs",
        ),
        (broken({"blk.0.attn_k.weight.lora_a": np.ones((4, 64), np.float32)}), "has no counterpart"),
        (broken({"blk.0.attn_q.weight.lora_a": np.ones((3, 64), np.float32)}), "ranks 3 and 4"),
        (broken({"blk.0.attn_q.weight.lora_a": np.ones((4, 32), np.float32)}), "does not match the model's tensor"),
        (
            broken({f"token_embd.weight.lora_{x}": np.ones((4, 4), np.float32) for x in "ab"}),
            "changes 'token_embd.weight', which is not a matrix",
        ),
    ],
)
def test_unsupported_adapter_files_are_rejected(folder, model, change, message):
    pairs, keys = change
    path = write_lora(folder / "broken.gguf", pairs, **keys)
    with pytest.raises(ModelError, match=message):
        LLM(model, ctx=64, adapters=[path])


def test_missing_adapter_file_is_named(folder, model):
    with pytest.raises(StoreError, match=r"LoRA adapter '.*none\.gguf' not found; pass the path of its GGUF file"):
        LLM(model, adapters=[folder / "none.gguf"])


def test_two_files_with_one_name_need_names(folder, model):
    with pytest.raises(RequestError, match="two adapter files have the same name"):
        LLM(model, adapters=[folder / "first.gguf", folder / "x" / "first.gguf"])
