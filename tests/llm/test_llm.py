"""The library's face, with the real model where it matters."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import TINY, byte_vocabulary, write_tiny
from woolly import LLM, ModelError, RequestError, SamplingParams, StoreError, TemplateError, UnsupportedError
from woolly.engine import Engine, PromptLookupProposer
from woolly.engine.loading import memory_estimate
from woolly.gguf import GGUFWriter, open_gguf
from woolly.quant import GGMLType

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def real(smollm2):
    with LLM(smollm2) as llm:
        yield llm


def test_smollm2_knows_the_capital_of_france(real):
    answer = real.chat([{"role": "user", "content": "Name the capital city of France."}], GREEDY)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text


def test_smollm2_continues_plain_text(real):
    answer = real.generate("The first ten numbers are 1, 2, 3, 4,", SamplingParams(temperature=0, max_tokens=12))
    assert answer.text.startswith(" 5, 6, 7")
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 12


def test_streamed_chat_equals_the_complete_chat(real):
    messages = [{"role": "user", "content": "Name three colours."}]
    pieces = [chunk.text for chunk in real.chat(messages, GREEDY, stream=True)]
    assert len(pieces) > 3
    assert "".join(pieces) == real.chat(messages, GREEDY).text


def test_smollm2_batched_in_a_small_cache_equals_alone(real):
    texts = ["The sheep", "One two three one two three one two", "def add(a, b):\n    return", "A list:\n- milk\n- "]
    wishes = [{"temperature": 0}, {}, {"regex": "[a-z ]{4,20}"}, {"mirostat": 2, "logprobs": 1}]
    requests = [
        (real.tokenize(text * n), SamplingParams(seed=i, max_tokens=24, **wish))
        for i, (text, wish) in enumerate(zip(texts, wishes, strict=True))
        for n in (1, 4)
    ]
    engine = Engine(real.engine.program, real.tokenizer, ctx=96, chunk=16, draft=PromptLookupProposer())
    sequences = [engine.add(engine.new_request(*request)) for request in requests]
    while not engine.is_idle:
        engine.step()
    for sequence, request in zip(sequences, requests, strict=True):
        alone = real.generate(*request)
        assert (sequence.text, tuple(sequence.output)) == (alone.text, alone.token_ids)
        assert tuple(sequence.logprobs) == (alone.logprobs or ())


def test_text_survives_tokenize_and_detokenize(real):
    text = "Grüße, 世界! 👩‍👩‍👧 \t\n\x00 done"
    assert real.detokenize(real.tokenize(text, add_special=False)) == text


def test_special_tokens_are_parsed_only_on_request(real):
    assert real.tokenize("<|im_end|>", parse_special=True) == [real.tokenizer.eos_id]
    assert len(real.tokenize("<|im_end|>", parse_special=False)) > 1


def test_logits_have_one_row_per_token(real):
    ids = real.tokenize("Wool")
    logits = real.logits(ids)
    assert logits.dtype == np.float32
    assert logits.shape == (len(ids), real.n_vocab)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    "type", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q5_1, GGMLType.Q5_0, GGMLType.Q4_1, GGMLType.Q4_0]
)
def test_quantized_model_stays_near_the_f32_one(type, tmp_path):
    with LLM(write_tiny(TINY["llama"], tmp_path / "f32.gguf")) as llm:
        exact = llm.logits(list(range(20)))
    with LLM(write_tiny(replace(TINY["llama"], type=type), tmp_path / "q.gguf")) as llm:
        near = llm.logits(list(range(20)))
    error = np.linalg.norm(near - exact) / np.linalg.norm(exact)
    # Bits of each type bound what may be lost; half of the logits' norm would mean noise.
    bits = {GGMLType.F16: 11, GGMLType.BF16: 8, GGMLType.Q8_0: 7, GGMLType.Q5_0: 4, GGMLType.Q5_1: 4}.get(type, 3)
    assert 0 < error < 4 * 2.0**-bits


def test_missing_model_is_rejected():
    with pytest.raises(StoreError, match="no-such-model"):
        LLM("no-such-model.gguf")


def test_vocabulary_without_weights_is_rejected(tmp_path):
    writer = GGUFWriter(tmp_path / "vocab.gguf")
    writer.add("general.architecture", "llama")
    for key, value in byte_vocabulary().items():
        writer.add(key, value)
    writer.write()
    with pytest.raises(ModelError, match="no weights"):
        LLM(tmp_path / "vocab.gguf")


@pytest.mark.parametrize("ctx", [0, -1, 1.5, True])
def test_invalid_context_size_is_rejected(ctx, tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    with pytest.raises(RequestError, match=r"expected an integer of at least 1"):
        LLM(path, ctx=ctx)


def test_context_beyond_training_is_accepted_with_a_warning(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    with pytest.warns(UserWarning, match="ctx is 600, but tiny was trained for 512"), LLM(path, ctx=600) as llm:
        answer = llm.generate([1] * 550, SamplingParams(temperature=0, ignore_eos=True))
    assert len(answer.token_ids) == 50


def test_default_context_is_the_training_context_if_memory_allows(tmp_path, monkeypatch):
    path = write_tiny(replace(TINY["llama"], context=1 << 17), tmp_path / "tiny.gguf")
    with LLM(path) as llm:
        assert llm.ctx == 1 << 17
        token = llm.plan.bytes_per_token(2)
    monkeypatch.setattr(
        "woolly.engine.loading.context_length.available_memory", lambda: path.stat().st_size + 4 * 20_000 * token
    )
    with LLM(path) as llm:
        assert llm.ctx == 16384  # the memory for 20,000 tokens, rounded
    monkeypatch.setattr("woolly.engine.loading.context_length.available_memory", lambda: 0)
    with LLM(path) as llm:
        assert llm.ctx == 8192


def test_model_too_large_for_memory_is_rejected_with_the_numbers(tmp_path, monkeypatch):
    path = write_tiny(replace(TINY["llama"], context=1 << 30), tmp_path / "tiny.gguf")
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 2 * 10**9)
    refused = r"tiny needs about \d+\.\d\d GB \(0\.00 GB of weights, \d+\.\d\d GB of cache for 99999999 tokens\),"
    with pytest.raises(
        RequestError, match=refused + r" but only 2\.00 GB are available; lower ctx or weight_memory"
    ) as reported:
        LLM(path, ctx=99_999_999)
    assert reported.value.code == "insufficient_memory"
    with pytest.raises(RequestError, match="of cache for 512 tokens"):
        LLM(path, ctx=512, kv_tokens=99_999_999)
    (tmp_path / "presets.toml").write_text("[tiny]\nctx = 99999999\n")
    with pytest.raises(RequestError, match="of cache for 99999999 tokens"):
        LLM(path)
    with LLM(path, ctx=512) as llm:
        assert llm.ctx == 512
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 0)
    with LLM(path, ctx=512, check_memory=False) as llm:
        assert llm.ctx == 512


def test_closed_llm_says_so(tmp_path):
    llm = LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"))
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="was closed"):
        llm.generate("x")


def test_malformed_conversation_is_rejected(tmp_path):
    with LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf")) as llm, pytest.raises(TemplateError):
        llm.chat([])


def test_unsupported_type_is_named_at_load(tmp_path):
    wide = replace(TINY["llama"], width=256)
    good = write_tiny(wide, tmp_path / "good.gguf")
    writer = GGUFWriter(tmp_path / "bad.gguf")
    with open_gguf(good) as file:
        for key, value in file.metadata.items():
            writer.add(key, value.tolist() if hasattr(value, "tolist") else value)
        for name, tensor in file.tensors.items():
            if name == "blk.1.ffn_up.weight":
                writer.add_raw_tensor(name, GGMLType.Q1_0, tensor.shape, bytes(tensor.shape[0] * 36))
            else:
                writer.add_raw_tensor(name, tensor.type, tensor.shape, tensor.data)
    writer.write()
    with pytest.raises(UnsupportedError, match=r"'blk\.1\.ffn_up\.weight' is Q1_0, which is not supported yet"):
        LLM(tmp_path / "bad.gguf")


def test_custom_chat_template_replaces_the_one_of_the_file(tmp_path):
    path = write_tiny(TINY["granite"], tmp_path / "tiny.gguf")
    with LLM(path, chat_template="{% for m in messages %}[{{ m.content }}]{% endfor %}") as llm:
        assert llm.template.render([{"role": "user", "content": "hi"}]) == "[hi]"
        assert not llm.template.is_fallback
        answer = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=2, temperature=0))
        assert answer.n_prompt_tokens == len(llm.tokenize("[hi]"))
    with pytest.raises(RequestError, match="chat_template is empty"):
        LLM(path, chat_template=" ")
    with pytest.raises(TemplateError):
        LLM(path, chat_template="{% broken")
