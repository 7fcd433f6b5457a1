"""Ollama's routes as HTTP: lines of JSON, bodies under any Content-Type, what is told and what is refused."""

import json
import math

import pytest

from woolly.serving.dialects.ollama import DIALECT
from woolly.serving.dialects.ollama import pull as pulling
from woolly.serving.errors import ApiError

GREEDY = {"num_predict": 3, "temperature": 0}  # a seedless draw of the tiny model may end before its third token
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "options": GREEDY}


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_body_is_json_regardless_of_its_header(client, kind):
    headers = {} if kind is None else {"content-type": kind}
    reply = client.post("/api/chat", content=json.dumps(CHAT), headers=headers)
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[-1]["done"] and lines[-1]["eval_count"] == 3


def test_stream_is_the_default_and_matches_the_complete_reply(client):
    body = {**CHAT, "options": {"num_predict": 8, "temperature": 0}}
    lines = [json.loads(line) for line in client.post("/api/chat", json=body).text.splitlines()]
    whole = client.post("/api/chat", json={**body, "stream": False}).json()
    assert whole["message"]["content"] == "".join(line["message"]["content"] for line in lines)
    assert whole.keys() == lines[-1].keys() and whole["created_at"].endswith("Z")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_logprobs_match_the_openai_api(client, path):
    asked = {"messages": CHAT["messages"], "temperature": 0, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    wanted = client.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    body = {**CHAT, "prompt": "hi", "options": {"num_predict": 5, "temperature": 0}, "logprobs": True}
    body = {name: value for name, value in body.items() if name != ("messages" if "generate" in path else "prompt")}
    whole = client.post(path, json={**body, "top_logprobs": 2, "stream": False}).json()
    assert whole["logprobs"] == wanted and len(wanted[0]["top_logprobs"]) == 2
    lines = [json.loads(line) for line in client.post(path, json=body).text.splitlines()]
    streamed = [one for line in lines for one in line.get("logprobs", ())]
    assert [one["logprob"] for one in streamed] == [one["logprob"] for one in wanted]
    assert streamed[0]["top_logprobs"] == []
    reply = client.post(path, json={**body, "logprobs": False, "top_logprobs": 2})
    assert '"logprobs"' not in reply.text and "top_logprobs" in reply.headers["x-woolly-ignored"]


def test_answers_match_the_openai_api(client):
    body = {"messages": CHAT["messages"], "temperature": 0, "max_tokens": 8}
    answer = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    options = {"num_predict": 8, "temperature": 0}
    reply = client.post("/api/chat", json={**CHAT, "options": options, "stream": False}).json()
    assert reply["message"]["content"] == answer
    body = {"model": "tiny", "prompt": "hi", "options": options, "stream": False}
    assert client.post("/api/generate", json=body).json()["response"] == answer


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_schema_is_added_to_the_prompt_on_request(client, path):
    body = {**(CHAT if path == "/api/chat" else {"model": "tiny", "prompt": "hi"}), "stream": False}
    body = {**body, "format": {"type": "boolean"}, "options": GREEDY}
    asked = {"messages": CHAT["messages"], "temperature": 0, "max_tokens": 3, "tell_schema": True}
    form = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"type": "boolean"}}}
    reported = client.post("/v1/chat/completions", json={**asked, "response_format": form}).json()["usage"]
    plain, told_here = (client.post(path, json={**body, "tell_schema": tells}).json() for tells in (False, True))
    assert told_here["prompt_eval_count"] == reported["prompt_tokens"] > plain["prompt_eval_count"] + 40
    reply = client.post(path, json={**body, "format": None, "tell_schema": True})
    assert reply.status_code == 400 and reply.json() == {
        "error": "tell_schema: there is no schema; give one, or leave it out"
    }


@pytest.mark.parametrize("more", [{"raw": True}, {"suffix": "x"}, {"context": [1]}])
def test_too_large_schema_for_a_system_message_is_rejected(client, more):
    body = {"model": "tiny", "prompt": "hi", "format": "json", "tell_schema": True, **more}
    reply = client.post("/api/generate", json=body)
    assert reply.status_code == 400 and "which has no system message" in reply.json()["error"]


def test_options_without_effect_are_reported(client):
    options = {"num_predict": 1, "num_gpu": 1, "zzz": 2, "num_ctx": 99999, "top_p": None, "tfs_z": 1.0}
    reply = client.post("/api/chat", json={**CHAT, "options": options, "foo": 1})
    reported = reply.headers["x-woolly-ignored"]
    for name in ("options.num_gpu", "options.zzz", "options.num_ctx", "options.tfs_z", "foo"):
        assert name in reported
    assert "top_p" not in reported


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/api/chat", {"options": {"top_k": "many"}}, "options.top_k: expected an integer, but got 'many'"),
        ("/api/chat", {"options": {"temperature": "hot"}}, "options.temperature"),
        ("/api/chat", {"options": {"num_predict": 1.5}}, "options.num_predict"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ("/api/chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected 0 to 20, but got 21"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"tool_choice": "required"}, "'required' needs at least one tool"),
        ("/api/generate", {"messages": None, "prompt": "x", "raw": True, "system": "y"}, "system"),
        ("/api/show", {}, "model"),
        ("/api/pull", {}, "model"),
    ],
)
def test_unsupported_requests_get_a_text_error(client, path, fields, says):
    body = {**CHAT, **fields} if path in ("/api/chat", "/api/generate") else fields
    reply = client.post(path, json={name: value for name, value in body.items() if value is not None})
    assert reply.status_code == 400 and says in reply.json()["error"], reply.text


def test_first_requests_of_clients(client):
    for path in ("/", "/api/version", "/api/tags"):
        assert client.head(path).status_code == 200 == client.get(path).status_code
    number = client.get("/api/version").json()["version"].split(".")
    assert [int(part) for part in number] >= [0, 14, 2]
    (model,) = client.get("/api/tags").json()["models"]
    assert model["name"] == "tiny:latest" and len(model["digest"]) == 64
    assert client.post("/api/show", json={"name": "tiny"}).json()["model_info"]["general.architecture"] == "llama"
    verbose = client.post("/api/show", json={"model": "TINY:latest", "verbose": True}).json()
    assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) > 5


def test_gate_and_stream_errors_are_texts(app_with):
    with app_with(api_key=("secret",)) as client:
        assert "key" in client.post("/api/chat", json=CHAT).json()["error"]
        assert client.post("/api/chat", json=CHAT, headers={"Authorization": "Bearer secret"}).status_code == 200
    assert json.loads(DIALECT.error_frame(ApiError(503, "code", "stopped"))) == {"error": "stopped"}
    with app_with() as client:
        assert isinstance(client.get("/api/nowhere").json()["error"], str)
        assert client.get("/api/v1/nowhere").json()["error"]["code"]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(300, 300), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), ("10", 10), (-1, math.inf), ("-1m", math.inf), (0, 0)],
)
def test_model_is_kept_as_long_as_the_last_request_asks(client, given, seconds):
    reply = client.post("/api/chat", json={**CHAT, "keep_alive": given, "stream": False})
    assert reply.status_code == 200 and "x-woolly-ignored" not in reply.headers
    assert client.app.state.models.keep_alive_of("tiny") == seconds
    (loaded,) = client.get("/api/ps").json()["models"]
    assert loaded["expires_at"].startswith("9999") == (seconds == math.inf)


def test_model_with_keep_alive_zero_is_unloaded(client):
    client.post("/api/chat", json={**CHAT, "keep_alive": 0, "stream": False})
    assert client.get("/api/ps").json()["models"]
    client.portal.call(client.app.state.models.unload_idle)
    assert client.get("/api/ps").json()["models"] == []
    for wrong in ("soon", "", "5 m", "5d"):
        reply = client.post("/api/chat", json={**CHAT, "keep_alive": wrong})
        assert reply.status_code == 400 and "keep_alive" in reply.json()["error"]


def test_unloading_and_pulling_need_load_rights(app_with):
    with app_with(api_key=("user",), admin_key=("boss",), allow_pull=True) as client:
        body = {"model": "tiny", "keep_alive": 0}
        for key, status in (("user", 403), ("boss", 200)):
            assert client.post("/api/generate", json=body, headers={"x-api-key": key}).status_code == status
        assert client.post("/api/pull", json={"model": "x"}, headers={"x-api-key": "user"}).status_code == 403
        reply = client.post("/api/chat", json={**CHAT, "keep_alive": 5, "stream": False}, headers={"x-api-key": "user"})
        assert "keep_alive" in reply.headers["x-woolly-ignored"]


def test_pull_reports_its_progress(app_with, monkeypatch, tiny_folder):
    def fetch(name, progress):
        assert name == "smollm2"
        progress(1, 2)
        progress(2, 2)

    monkeypatch.setattr(pulling, "fetch", fetch)
    monkeypatch.setattr(pulling, "models_folder", lambda: tiny_folder)
    with app_with(allow_pull=True) as client:
        reply = client.post("/api/pull", json={"model": "smollm2:latest"})
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert [line.get("completed") for line in lines[1:3]] == [1, 2] and lines[-1] == {"status": "success"}
        for name in ("/etc/passwd", "./x.gguf", "http://127.0.0.1/x.gguf", "hf:", "sheep"):
            assert client.post("/api/pull", json={"model": name}).status_code == 400
