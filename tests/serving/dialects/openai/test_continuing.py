"""An assistant's last message is continued: by default, as by llama-server, and by vLLM's two fields."""

import pytest

QUESTION = {"role": "user", "content": "Name the capital city of France."}
BEGUN = {"role": "assistant", "content": "The capital of France is the city of"}
FIELDS = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def ask(server):
    with server.client() as client:

        def ask(*messages, **fields):
            return client.post("/v1/chat/completions", json={"messages": messages, **FIELDS, **fields}).json()

        yield ask


def text(reply):
    return reply["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "fields", [{}, {"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}]
)
def test_answer_continues_the_last_message(ask, server, fields):
    system = {"role": "system", "content": "x"}  # the model's template has one of its own
    with server.client() as client:
        prompt = client.post("/apply-template", json={"messages": [system, QUESTION]}).json()["prompt"]
        raw = client.post("/v1/completions", json={"prompt": prompt + BEGUN["content"], **FIELDS}).json()
    assert text(ask(system, QUESTION, BEGUN, **fields)) == raw["choices"][0]["text"]


@pytest.mark.parametrize("fields", [{"continue_final_message": False}, {"add_generation_prompt": True}])
def test_new_turn_starts_on_request(ask, fields):
    begun = ask(QUESTION, BEGUN, **fields)
    assert begun["usage"]["prompt_tokens"] > ask(QUESTION, BEGUN)["usage"]["prompt_tokens"]


def test_contradictory_fields_are_rejected(ask):
    both = ask(QUESTION, BEGUN, continue_final_message=True, add_generation_prompt=True)
    assert both["error"]["param"] == "continue_final_message"
    for fields in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        error = ask(QUESTION, **fields)["error"]
        assert error["param"] == "continue_final_message" and "is of role 'user'" in error["message"]


def test_answer_with_a_schema_starts_anew(ask):
    reply = ask(QUESTION, BEGUN, response_format={"type": "json_object"}, max_tokens=30)
    assert text(reply).startswith("{")
