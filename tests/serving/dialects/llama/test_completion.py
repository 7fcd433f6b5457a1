"""POST /completion takes what llama-server documents, and replies as it does."""

import json
import math

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly import SamplingParams
from woolly.tokens import Tokenizer


def post(client, path="/completion", **fields):
    return client.post(path, json=fields)


def events(reply):
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]


def test_reply_has_the_documented_fields(client):
    reply = post(client, prompt="the end", n_predict=6, seed=1, ignore_eos=True).json()
    assert reply["stop"] is True and reply["stop_type"] == "limit" and reply["stopping_word"] == ""
    assert reply["tokens"] == [] and reply["tokens_predicted"] == 6 and reply["index"] == 0
    assert reply["tokens_evaluated"] == 5 and reply["tokens_cached"] == 0 and reply["truncated"] is False
    assert reply["prompt"] == "the end" and reply["model"] == "tiny" and isinstance(reply["has_new_line"], bool)
    timings = reply["timings"]
    assert timings["prompt_n"] == 5 and timings["predicted_n"] == 6 and timings["predicted_per_second"] > 0
    settings = reply["generation_settings"]
    assert settings["n_predict"] == settings["max_tokens"] == 6 and settings["seed"] == 1
    assert settings["n_ctx"] == 512 and settings["top_k"] == 40 and settings["ignore_eos"] is True
    assert (
        post(client, "/completions", prompt="the end", n_predict=6, seed=1, ignore_eos=True).json()["content"]
        == (reply["content"])
    )


def test_tokens_are_returned_on_request(client):
    reply = post(client, prompt="hi", n_predict=4, seed=1, return_tokens=True, ignore_eos=True).json()
    assert len(reply["tokens"]) == 4
    tokenizer = Tokenizer.from_metadata(byte_vocabulary())
    assert tokenizer.decode(reply["tokens"], skip_special=True) == reply["content"]


def test_stream_adds_up_to_the_complete_text(client):
    asked = {"prompt": "hi", "n_predict": 12, "seed": 2, "ignore_eos": True}
    whole = post(client, **asked, return_tokens=True).json()
    chunks = events(post(client, **asked, stream=True, timings_per_token=True, n_probs=2))
    *parts, last = chunks
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert all(part["stop"] is False and part["timings"] for part in parts)
    assert [part["tokens_predicted"] for part in parts][-1] == 12
    assert sum(len(part["completion_probabilities"]) for part in parts) == 12
    assert last["stop"] is True and last["content"] == "" and last["stop_type"] == "limit"
    assert last["generation_settings"]["stream"] is True and last["timings"]["predicted_n"] == 12


def test_stop_word_and_end_token_are_distinguished(client):
    text = post(client, prompt="hi", n_predict=30, seed=3, ignore_eos=True).json()["content"]
    word = text[2:4]
    reply = post(client, prompt="hi", n_predict=30, seed=3, ignore_eos=True, stop=[word]).json()
    assert reply["stop_type"] == "word" and reply["stopping_word"] == word
    assert reply["content"] == text[: text.index(word)]
    end = byte_vocabulary()["tokenizer.ggml.eos_token_id"]
    ended = post(client, prompt="hi", n_predict=5, seed=3, logit_bias=[[end, 1000]]).json()
    assert ended["stop_type"] == "eos" and ended["stopping_word"] == "" and ended["content"] == ""


def test_context_limit_is_reported(client):
    reply = post(client, prompt="a" * 500, ignore_eos=True).json()
    assert reply["stop_type"] == "limit" and reply["truncated"] is True
    assert reply["tokens_evaluated"] + reply["tokens_predicted"] == 512


def test_n_predict_zero_generates_nothing(client):
    reply = post(client, prompt="hi there", n_predict=0).json()
    assert reply["content"] == "" and reply["tokens_predicted"] == 0 and reply["stop_type"] == "limit"


def test_probabilities_are_exact_and_sorted(client):
    reply = post(
        client, prompt="hi", n_predict=3, n_probs=100, temperature=0, ignore_eos=True, return_tokens=True
    ).json()
    assert [one["id"] for one in reply["completion_probabilities"]] == reply["tokens"]
    (slot,) = client.app.state.models.loaded_models
    params = SamplingParams(max_tokens=3, logprobs=320, temperature=0, ignore_eos=True)
    (whole,) = slot.model.generate(["hi"], params)
    for one, all_tokens in zip(reply["completion_probabilities"], whole.logprobs, strict=True):
        top = one["top_logprobs"]
        assert math.fsum(math.exp(logprob) for _, logprob in all_tokens.top) == pytest.approx(1, abs=1e-6)
        assert [(entry["id"], entry["logprob"]) for entry in top] == list(all_tokens.top)[:100]
        assert [entry["logprob"] for entry in top] == sorted((entry["logprob"] for entry in top), reverse=True)
        assert {"id", "token", "bytes", "logprob"} <= set(one)


def test_prompts_are_text_ids_both_or_several(client):
    ids = client.post("/tokenize", json={"content": "hi there"}).json()["tokens"]
    wanted = post(client, prompt="hi there", n_predict=4, seed=1).json()["content"]
    for prompt in (ids, ["hi", *client.post("/tokenize", json={"content": " there"}).json()["tokens"]]):
        assert post(client, prompt=prompt, n_predict=4, seed=1).json()["content"] == wanted
    assert post(client, prompt={"prompt_string": "hi there"}, n_predict=4, seed=1).json()["content"] == wanted
    many = post(client, prompt=["hi there", ids, [*ids[:2], "zz"]], n_predict=4, seed=1).json()
    assert [one["index"] for one in many] == [0, 1, 2]
    assert [one["content"] for one in many[:2]] == [wanted, wanted]


def test_several_answers_to_one_prompt_have_indices(client):
    asked = {"prompt": "hi", "n_predict": 5, "n_cmpl": 3, "seed": 7, "ignore_eos": True}
    whole = post(client, **asked).json()
    assert [one["index"] for one in whole] == [0, 1, 2] and len({one["content"] for one in whole}) == 3
    chunks = events(post(client, **asked, stream=True))
    for one in whole:
        mine = [chunk["content"] for chunk in chunks if chunk["index"] == one["index"]]
        assert "".join(mine) == one["content"]


def test_reply_fields_can_be_selected(client):
    fields = ["content", "generation_settings/n_predict", "no/such", "timings/predicted_n"]
    reply = post(client, prompt="hi", n_predict=3, response_fields=fields, ignore_eos=True).json()
    assert set(reply) == {"content", "generation_settings/n_predict", "timings/predicted_n"}
    assert reply["generation_settings/n_predict"] == 3


def test_meaningless_fields_of_llama_server_clients_are_accepted(client):
    harmless = {"id_slot": 0, "cache_prompt": True, "n_keep": 5, "grammar": "", "stop": [], "t_max_predict_ms": 0}
    harmless |= {"seed": -1, "lora": [], "n_probs": 0, "logit_bias": [], "post_sampling_probs": False, "n_predict": 2}
    assert post(client, prompt="hi", **harmless).status_code == 200


def test_grammar_and_schema_are_enforced(client):
    assert post(client, prompt="hi", grammar='root ::= "yes" | "no"').json()["content"] in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    made = post(client, prompt="hi", json_schema={**schema, "additionalProperties": False}, n_predict=200).json()
    assert isinstance(json.loads(made["content"])["a"], bool)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 10_000]}, "10000"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"prompt_string": "hi", "multimodal_data": ["x"]}}, "multimodal_data"),
        ({"prompt": {"text": "hi"}}, "prompt_string"),
        ({"prompt": ["a"] * 300}, "300"),
        ({"prompt": ["a", "b"], "stream": True}, "several prompts"),
        ({"prompt": "hi", "n_predict": -3}, "n_predict"),
        ({"prompt": "hi", "n_predict": 3, "max_tokens": 4}, "max_tokens"),
        ({"prompt": "hi", "t_max_predict_ms": 100}, "t_max_predict_ms"),
        ({"prompt": "hi", "n_indent": 1}, "n_indent"),
        ({"prompt": "hi", "lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"prompt": "hi", "lora": [{"id": 0, "scale": 0}]}, "lora"),
        ({"prompt": "hi", "temperature": "1"}, "temperature"),
        ({"prompt": "hi", "top_p": 7}, "top_p"),
        ({"prompt": "hi", "samplers": ["sorcery"]}, "sorcery"),
        ({"prompt": "hi", "grammar": "root ::= ("}, "grammar"),
        ({"prompt": "a" * 600}, "512"),
        ({"prompt": "hi", "n_probs": 101}, "n_probs"),
        ({"prompt": "hi", "stop": ["x"] * 257}, "stop has 257 strings"),
        ({"prompt": "hi", "stop": "x" * 65_537}, "stop has 1 strings with 65537 bytes"),
    ],
)
def test_invalid_or_unsupported_fields_are_named(client, fields, named):
    reply = client.post("/completion", json=fields)
    assert reply.status_code == 400 and named in reply.json()["error"]["message"], reply.text
    more = {"n_ctx", "n_prompt_tokens"} if named == "512" else set()
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"} | more


def test_stream_reports_prompt_progress(app_with):
    asked = {"prompt": "a" * 100, "n_predict": 2, "ignore_eos": True, "stream": True}
    asked |= {"return_progress": True, "timings_per_token": True}
    with app_with(batch_size=32) as client:
        reported = [part for part in events(client.post("/completion", json=asked)) if "prompt_progress" in part]
        done = [part["prompt_progress"]["processed"] for part in reported]
        total = reported[0]["prompt_progress"]["total"]
        assert done == [0, 32, 64, 96, total] and reported[0]["timings"]["prompt_ms"] == 0.0
        again = [part for part in events(client.post("/completion", json=asked)) if "prompt_progress" in part]
        assert [part["prompt_progress"]["processed"] for part in again] == [96, total]
        chat = {"messages": [{"role": "user", "content": "a" * 60}], "max_tokens": 2, "return_progress": True}
        reply = client.post("/v1/chat/completions", json={**chat, "stream": True}).text.removesuffix("data: [DONE]\n\n")
        parts = [json.loads(line[6:]) for line in reply.split("\n\n") if line]
        assert next(part["prompt_progress"]["processed"] for part in parts if "prompt_progress" in part) == 0


def test_post_sampling_probabilities_are_those_of_the_draw(client):
    asked = {"prompt": "the", "n_predict": 4, "n_probs": 10, "post_sampling_probs": True, "seed": 3}
    reply = client.post("/completion", json={**asked, "top_k": 3, "samplers": ["top_k"]}).json()
    for token in reply["completion_probabilities"]:
        assert 0 < token["prob"] <= 1 and len(token["top_probs"]) == 3
        assert sum(one["prob"] for one in token["top_probs"]) == pytest.approx(1)
        assert token["id"] in [one["id"] for one in token["top_probs"]]
    greedy = client.post("/completion", json={**asked, "temperature": 0}).json()["completion_probabilities"]
    assert all(token["prob"] == 1 and len(token["top_probs"]) == 1 for token in greedy)
