"""vLLM's fields on OpenAI's routes: ids, log-probabilities of prompts, limits on tokens; and its routes."""

import json
import re

import pytest

TALK = [{"role": "user", "content": "one two three"}]
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
TEXT = {"prompt": "one two", **GREEDY}
CHAT = {"messages": TALK, **GREEDY}


def events(reply):
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def ask(client, path, body, **fields):
    reply = client.post(path, json=body | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_prompt_and_answer_ids_are_returned(client):
    ids = client.post("/tokenize", json={"prompt": "one two"}).json()["tokens"]
    reply = ask(client, "/v1/completions", TEXT, return_token_ids=True)
    (choice,) = reply["choices"]
    assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == 6 and choice["logprobs"] is None
    text = client.post("/detokenize", json={"tokens": choice["token_ids"]}).json()["content"]
    assert text.strip() == choice["text"].strip()
    chat = ask(client, "/v1/chat/completions", CHAT, return_token_ids=True)
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert len(chat["choices"][0]["token_ids"]) == 6


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
def test_stream_carries_the_ids_of_the_complete_answer(client, path, body):
    whole = ask(client, path, body, return_token_ids=True)
    chunks = events(client.post(path, json=body | {"return_token_ids": True, "stream": True}))
    streamed = [token for chunk in chunks for one in chunk["choices"] for token in one.get("token_ids", ())]
    assert streamed == whole["choices"][0]["token_ids"]
    places = [chunk.get("prompt_token_ids") or chunk["choices"][0].get("prompt_token_ids") for chunk in chunks]
    assert places[0] and not any(places[1:])


def test_logprob_tokens_are_named_by_their_ids(client):
    fields = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    text = ask(client, "/v1/completions", TEXT, logprobs=2, **fields)["choices"][0]
    assert text["logprobs"]["tokens"] == [f"token_id:{id}" for id in text["token_ids"]]
    assert all(name.startswith("token_id:") for name in text["logprobs"]["top_logprobs"][0])
    chat = ask(client, "/v1/chat/completions", CHAT, logprobs=True, top_logprobs=1, **fields)["choices"][0]
    assert [one["token"] for one in chat["logprobs"]["content"]] == [f"token_id:{id}" for id in chat["token_ids"]]


def test_prompt_logprobs_match_echo(client):
    echoed = ask(client, "/v1/completions", TEXT, echo=True, logprobs=1)["choices"][0]["logprobs"]
    given = ask(client, "/v1/completions", TEXT, prompt_logprobs=1, return_token_ids=True)["choices"][0]
    scores, ids = given["prompt_logprobs"], given["prompt_token_ids"]
    assert scores[0] is None and len(scores) == len(ids)
    own = [entry[str(id)]["logprob"] for entry, id in zip(scores[1:], ids[1:], strict=True)]
    assert own == pytest.approx(echoed["token_logprobs"][1 : len(ids)])
    for entry, id in zip(scores[1:], ids[1:], strict=True):
        best = max(entry.values(), key=lambda one: one["logprob"])
        assert best["rank"] == 1 and (entry[str(id)]["rank"] == 1) == (len(entry) == 1)
    chat = ask(client, "/v1/chat/completions", CHAT, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in ask(client, "/v1/chat/completions", CHAT)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
    ],
)
def test_unsupported_fields_are_rejected(client, path, fields, says):
    reply = client.post(path, json=(TEXT if path == "/v1/completions" else CHAT) | fields)
    assert reply.status_code == 400 and says in reply.json()["error"]["message"]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
def test_only_allowed_tokens_are_generated(client, path, body):
    reply = ask(client, path, body, allowed_token_ids=[70, 71, 72], return_token_ids=True, temperature=1.0)
    assert set(reply["choices"][0]["token_ids"]) <= {70, 71, 72}


def test_bad_words_are_not_generated(client):
    body = TEXT | {"max_tokens": 24, "return_token_ids": True}
    (before,) = ask(client, "/v1/completions", body)["choices"]
    word = max(re.findall(r"[!-~]+", before["text"]), key=len)
    (after,) = ask(client, "/v1/completions", body, bad_words=[word])["choices"]
    ids = client.post("/tokenize", json={"content": word}).json()["tokens"]
    runs = [after["token_ids"][i : i + len(ids)] for i in range(len(after["token_ids"]))]
    assert ids not in runs and after["token_ids"] != before["token_ids"]


def test_prompt_is_truncated_at_its_beginning(client):
    whole = client.post("/tokenize", json={"prompt": "one two"}).json()["tokens"]
    reply = ask(client, "/v1/completions", TEXT, truncate_prompt_tokens=3, return_token_ids=True)
    assert reply["choices"][0]["prompt_token_ids"] == whole[-3:] and reply["usage"]["prompt_tokens"] == 3
    assert ask(client, "/v1/chat/completions", CHAT, truncate_prompt_tokens=4)["usage"]["prompt_tokens"] == 4


def test_minus_one_keeps_what_fits(app_with):
    with app_with(ctx_size=64) as client:
        body = {**TEXT, "prompt": "ab " * 100}
        assert client.post("/v1/completions", json=body).status_code == 400
        reply = ask(client, "/v1/completions", body, truncate_prompt_tokens=-1, max_tokens=1)
    assert reply["usage"]["prompt_tokens"] == 63


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
def test_stop_string_is_included_on_request(client, path, body):
    def text(reply):
        (choice,) = reply["choices"]
        return choice["text"] if path == "/v1/completions" else choice["message"]["content"]

    whole = text(ask(client, path, body | {"max_tokens": 20}))
    stop = whole[5:8]
    cut = whole[: whole.index(stop)]
    asked = body | {"max_tokens": 20, "stop": [stop]}
    assert text(ask(client, path, asked)) == cut
    assert text(ask(client, path, asked, include_stop_str_in_output=True)) == cut + stop
    chunks = events(client.post(path, json=asked | {"include_stop_str_in_output": True, "stream": True}))
    parts = [one.get("text") or one.get("delta", {}).get("content") or "" for c in chunks for one in c["choices"]]
    assert "".join(parts) == cut + stop


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
def test_usage_comes_with_every_chunk_on_request(client, path, body):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(client.post(path, json=body | {"stream": True, "stream_options": options}))
    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counted == sorted(counted) and counted[-1] == 6 and all(chunk["usage"]["prompt_tokens"] for chunk in chunks)


def test_chat_echoes_the_continued_text(client):
    talk = [*TALK, {"role": "assistant", "content": "It is"}]
    plain = ask(client, "/v1/chat/completions", CHAT | {"messages": talk})["choices"][0]["message"]["content"]
    fields = {"echo": True, "continue_final_message": True, "add_generation_prompt": False}
    echoed = ask(client, "/v1/chat/completions", CHAT | {"messages": talk}, **fields)["choices"][0]["message"][
        "content"
    ]
    assert echoed == "It is" + plain
    assert ask(client, "/v1/chat/completions", CHAT, echo=True) is not None


def test_tokenize_ends_within_the_last_message(client):
    talk = [*TALK, {"role": "assistant", "content": "It is"}]
    open_end = client.post("/tokenize", json={"messages": talk, "continue_final_message": True}).json()
    whole = client.post("/tokenize", json={"messages": talk, "add_generation_prompt": False}).json()
    assert open_end["count"] < whole["count"] and whole["tokens"][: open_end["count"]] == open_end["tokens"]
    both = {"messages": talk, "continue_final_message": True, "add_generation_prompt": True}
    assert client.post("/tokenize", json=both).status_code == 400


def test_vllm_probes_are_answered(client):
    assert client.get("/ping").status_code == 200 and client.get("/version").json()["version"]
    assert client.get("/load").json() == {"server_load": 0}


def test_special_tokens_are_reported_before_and_after_a_load(app_with):
    with app_with() as client:
        info, props = client.get("/tokenizer_info").json(), client.get("/props").json()
        assert not props["default_generation_settings"]["is_processing"] and props["is_sleeping"]
        assert info["eos_token"] and props["eos_token"] == info["eos_token"]
        caps = props["chat_template_caps"]
        assert caps["supports_string_content"] and caps["supports_system_role"] and not caps["supports_tool_calls"]
        ask(client, "/v1/completions", TEXT)
        assert client.get("/tokenizer_info").json() == info
        assert client.get("/props").json()["chat_template_caps"] == caps


def test_template_capabilities_are_detected_by_rendering(app_with):
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
        "{% endfor %}{{ tools }}"
    )
    with app_with(chat_template=source) as client:
        props = client.get("/props").json()
    assert props["chat_template"] == source
    caps = props["chat_template_caps"]
    assert caps["supports_tools"] and caps["supports_parallel_tool_calls"] and not caps["supports_preserve_reasoning"]
