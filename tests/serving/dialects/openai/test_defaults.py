"""Defaults of OpenAI requests, and values that OpenAI would reject."""

import pytest

PROMPT = {"prompt": "ab", "ignore_eos": True}


def n_tokens(reply):
    return reply.json()["usage"]["completion_tokens"]


def test_text_completion_without_a_limit_has_16_tokens(client):
    reply = client.post("/v1/completions", json=PROMPT)
    assert (n_tokens(reply), reply.json()["choices"][0]["finish_reason"]) == (16, "length")
    assert n_tokens(client.post("/v1/completions", json=PROMPT | {"max_tokens": 20})) == 20


def test_server_limit_overrides_the_openai_default(app_with):
    with app_with(n_predict=5) as client:
        assert n_tokens(client.post("/v1/completions", json=PROMPT)) == 5


def test_llama_server_values_for_no_limit_work(app_with):
    with app_with(ctx_size=64) as client:
        assert n_tokens(client.post("/v1/completions", json=PROMPT | {"n_predict": -1})) > 16
        assert client.post("/completion", json=PROMPT).json()["tokens_predicted"] > 16


def test_two_different_limits_are_rejected(client):
    reply = client.post("/v1/completions", json=PROMPT | {"n_predict": 3, "max_tokens": 4})
    assert reply.status_code == 400 and "n_predict" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8"])
def test_non_json_content_type_is_rejected(client, path, kind):
    reply = client.post(path, content=b'{"prompt": "ab", "max_tokens": 1}', headers={"content-type": kind})
    assert reply.status_code == 415 and "application/json" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", None]
)
def test_json_content_type_or_none_is_accepted(client, kind):
    headers = {} if kind is None else {"content-type": kind}
    reply = client.post("/v1/completions", content=b'{"prompt": "ab", "max_tokens": 1}', headers=headers)
    assert reply.status_code == 200


def test_unknown_path_says_so_with_any_body(client):
    reply = client.post("/v1/audio/speech", files={"file": b"RIFF"})
    assert reply.status_code == 404 and "audio" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_text_as_key_of_logit_bias_is_rejected(client, path):
    asked = {"prompt": "ab"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    reply = client.post(path, json=asked | {"max_tokens": 1, "logit_bias": {"bad1": 50}})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "logit_bias"
    assert "bad1" in reply.json()["error"]["message"]
    assert client.post(path, json=asked | {"max_tokens": 1, "logit_bias": {"7": 50}}).status_code == 200


def test_llama_server_route_takes_text_as_key_of_logit_bias(client):
    asked = {"prompt": "ab", "n_predict": 1, "logit_bias": {"b": 50}}
    assert client.post("/completion", json=asked).status_code == 200
