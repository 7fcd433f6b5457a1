"""Settings that llama-server has: names and tags, prefix, folder, reasoning, template names, autoload."""

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import SamplingParams
from woolly.serving.dialects.llama.parameters import CompletionBody
from woolly.serving.errors import ApiError

HI = [{"role": "user", "content": "hi"}]
THINKS = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
SWITCH = "{{ messages[0].content }}{% if enable_thinking %}+{% else %}-{% endif %}{# <think> #}"


def prompt_of(client, **fields):
    return client.post("/apply-template", json={"messages": HI, **fields}).json()["prompt"]


def test_model_has_its_configured_names_and_tags(app_with, tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "other.gguf")
    with app_with(model=str(path), alias=("b", "a"), tags=("small",)) as client:
        listed = client.get("/models").json()["data"]
        (model,) = [one for one in listed if one["id"] == "a"]
        assert model["aliases"] == ["a", "b"] and model["tags"] == ["small"]
        assert model["status"] == {"value": "unloaded"}
        assert client.post("/completion", json={"model": "b", "prompt": "a", "n_predict": 1}).json()["model"] == "a"


def test_no_request_loads_a_model_without_autoload(app_with):
    with app_with(models_autoload=False) as client:
        reply = client.post("/completion", json={"prompt": "a", "n_predict": 1})
        assert reply.status_code == 400 and "POST /models/load" in reply.json()["error"]["message"]
        (model,) = client.get("/models").json()["data"]
        assert client.post("/models/load", json={"model": model["id"]}).json() == {"success": True}
        assert client.get("/models").json()["data"][0]["status"] == {"value": "loaded"}
        assert client.post("/completion", json={"prompt": "a", "n_predict": 1}).status_code == 200


def test_all_routes_are_below_the_prefix(app_with):
    with app_with(api_prefix="/llm") as client:
        assert client.get("/llm/health/live").status_code == 200 and client.get("/llm/v1/models").status_code == 200
        assert client.get("/health").status_code == 404 and client.get("/llmhealth").status_code == 404


def test_static_folder_replaces_the_page(app_with, tmp_path):
    (tmp_path / "index.html").write_text("mine")
    (tmp_path / "a.txt").write_text("text")
    with app_with(path=tmp_path, api_key=("k",)) as client:
        assert client.get("/").text == "mine" and client.get("/a.txt").text == "text"
        assert client.get("/missing").status_code == 401 and client.get("/v1/models").status_code == 401
        assert client.get("/%2e%2e/etc/passwd").status_code in (401, 404)


@pytest.mark.parametrize(
    ("settings", "fields", "end"),
    [
        ({"chat_template": THINKS}, {}, "<think>\n"),
        ({"chat_template": THINKS, "reasoning": "off"}, {}, "<think>\n</think>"),
        ({"chat_template": THINKS, "reasoning_budget": 0}, {}, "<think>\n</think>"),
        ({"chat_template": SWITCH}, {}, "+"),
        ({"chat_template": SWITCH, "reasoning": "off"}, {}, "-"),
        ({"chat_template": SWITCH, "reasoning": "off"}, {"chat_template_kwargs": {"enable_thinking": True}}, "+"),
        ({"chat_template": SWITCH, "chat_template_kwargs": '{"enable_thinking": false, "mood": 1}'}, {}, "-"),
        ({"chat_template": "llama3"}, {}, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ],
)
def test_settings_determine_the_chat_format(app_with, settings, fields, end):
    with app_with(**settings) as client:
        assert prompt_of(client, **fields).endswith(end)


def test_reasoning_stays_in_the_text_with_that_setting(app_with):
    with app_with(chat_template=THINKS, reasoning_format="none") as client:
        asked = {"messages": HI, "regex": "so</think>yes"}
        message = client.post("/chat/completions", json=asked).json()["choices"][0]["message"]
        # The prompt ends with the start marker; clients that hide reasoning look for both markers.
        assert message["content"] == "<think>\nso</think>yes" and "reasoning_content" not in message
        asked["reasoning_format"] = "deepseek"
        message = client.post("/chat/completions", json=asked).json()["choices"][0]["message"]
        assert message["content"] == "yes" and message["reasoning_content"] == "so"


def test_context_beyond_training_is_accepted_with_a_warning(app_with):
    with app_with(ctx_size=4096) as client:
        with pytest.warns(UserWarning, match="ctx is 4096, but tiny was trained for 512"):
            assert client.post("/completion", json={"prompt": "a", "n_predict": 1}).status_code == 200
        assert client.get("/props").json()["default_generation_settings"]["n_ctx"] == 4096


def test_vllm_tokenize_counts_text_and_conversations(client):
    reply = client.post("/tokenize", json={"prompt": "the á", "return_token_strs": True}).json()
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"]) and reply["max_model_len"] == 512
    chat = client.post("/tokenize", json={"messages": HI}).json()
    counted = client.post("/chat/completions/input_tokens", json={"messages": HI}).json()
    assert chat["count"] == counted["input_tokens"] > 5
    reply = client.post("/tokenize", json={"prompt": "a", "content": "a"})
    assert reply.status_code == 400 and "one of content, prompt and messages" in reply.json()["error"]["message"]


def test_prompt_is_returned_on_request(client):
    asked = {"messages": HI, "max_tokens": 2}
    shown = client.post("/chat/completions", json={**asked, "verbose": True}).json()
    assert "<|im_start|>user\nhi" in shown["__verbose"]["prompt"]
    assert "__verbose" not in client.post("/chat/completions", json=asked).json()


def test_no_adapters_are_listed(client):
    assert client.get("/lora-adapters").json() == []
    assert client.post("/lora-adapters", json=[]).json() == {"success": True}
    for scale in (0.0, 1.0):
        assert client.post("/lora-adapters", json=[{"id": 0, "scale": scale}]).status_code == 400


def test_adapter_scales_reach_the_engine_by_number():
    scales = [{"id": 1, "scale": 0.5}, {"id": 0, "scale": 0}]
    assert CompletionBody(prompt="hi", lora=scales).to_params(SamplingParams()).adapters == {1: 0.5, 0: 0}
    assert CompletionBody(prompt="hi", lora=[]).to_params(SamplingParams()).adapters == {}
    assert CompletionBody(prompt="hi").to_params(SamplingParams()).adapters is None
    with pytest.raises(ApiError, match="lora has"):
        CompletionBody(prompt="hi", lora=[{"name": "french"}]).to_params(SamplingParams())


def test_envelope_of_several_requests_is_answered(client):
    one = {"@requestFormat": "chatCompletions", "messages": HI, "max_tokens": 2}
    reply = client.post("/predict", json={"instances": [one, one], "parameters": {"temperature": 0}}).json()
    first, second = (answer["choices"][0]["message"] for answer in reply["predictions"])
    assert first == second and first["role"] == "assistant"
    for wrong, says in (({**one, "stream": True}, "stream"), ({"messages": 3}, "instances.0.messages")):
        refused = client.post("/predict", json={"instances": [wrong]})
        assert refused.status_code == 400 and says in refused.json()["error"]["message"]
