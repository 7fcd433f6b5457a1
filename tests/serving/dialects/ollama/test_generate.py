"""/api/generate goes on from a context, and names, times and thoughts are as Ollama has them."""

import json
from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny

ASK = {"model": "tiny", "prompt": "one two", "stream": False, "options": {"num_predict": 4, "temperature": 0}}
CHATML = (
    "{% for message in messages %}{{ '<' + message.role + '>' + message.content + '</>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def prompt_of(client, context, n_answer):
    return client.post("/detokenize", json={"tokens": context[: len(context) - n_answer]}).json()["content"]


def test_context_continues_the_last_answer(app_with):
    with app_with(chat_template=CHATML) as client:
        first = client.post("/api/generate", json={**ASK, "system": "be brief"}).json()
        second = client.post("/api/generate", json={**ASK, "prompt": "three", "context": first["context"]}).json()
    assert first["prompt_eval_count"] + first["eval_count"] == len(first["context"])
    assert second["context"][: len(first["context"])] == first["context"]  # no stop token ended the first
    with app_with(chat_template=CHATML) as client:
        text = prompt_of(client, second["context"], second["eval_count"])
    assert text.count("be brief") == 1 and text.endswith("</><user>three</><assistant>")


def test_last_line_of_a_stream_has_the_context(client):
    lines = [json.loads(line) for line in client.post("/api/generate", json={**ASK, "stream": True}).text.splitlines()]
    assert "context" not in lines[0] and len(lines[-1]["context"]) > 4
    raw = client.post("/api/generate", json={**ASK, "raw": True}).json()
    assert "context" not in raw


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"context": [1, 10**9]}, "context"),
        ({"context": [-1]}, "context"),
        ({"context": [1], "raw": True}, "raw"),
        ({"think": True}, "does not support thinking"),
        ({"think": "high"}, "does not support thinking"),
        ({"model": ""}, "model is required"),
    ],
)
def test_unsupported_requests_are_rejected(client, fields, says):
    reply = client.post("/api/generate", json=ASK | fields)
    assert reply.status_code == 400 and says in reply.json()["error"], reply.text


def test_too_long_context_is_rejected(app_with):
    with app_with(ctx_size=64) as client:
        reply = client.post("/api/generate", json={**ASK, "context": [1] * 100})
    assert reply.status_code == 400 and "exceeds the context length" in reply.json()["error"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show", "/api/embed", "/api/embeddings"])
def test_unknown_model_returns_404(app_with, path):
    talk = {"messages": [{"role": "user", "content": "a"}]}
    said = {"/api/chat": talk, "/api/embed": {"input": "a"}, "/api/show": {}}.get(path, {"prompt": "a"})
    with app_with(strict_models=False) as client:
        reply = client.post(path, json={"model": "pirate", **said})
        assert reply.status_code == 404 and "'pirate' not found" in reply.json()["error"]
        assert "tiny:latest" in reply.json()["error"]
        # The only model answers to any name in OpenAI's dialect.
        body = {"model": "pirate", **talk, "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_load_duration_is_reported(client):
    first = client.post("/api/generate", json=ASK).json()
    assert 0 < first["load_duration"] <= first["total_duration"]
    assert first["total_duration"] == sum(
        first[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration")
    )
    assert client.post("/api/generate", json={"model": "tiny"}).json()["load_duration"] > 0


def test_root_route_answers_ollama_health_checks(client):
    for accept in (None, "*/*", "text/plain"):
        reply = client.get("/", headers={} if accept is None else {"accept": accept})
        assert (reply.status_code, reply.text) == (200, "Ollama is running")
    assert client.head("/").status_code == 200
    assert client.get("/", headers={"accept": "application/json"}).json()["name"] == "woolly"


def test_license_of_a_file_is_shown(app_with, tmp_path):
    licensed = replace(TINY["llama"], shared_metadata={"general.license": "apache-2.0"})
    write_tiny(licensed, tmp_path / "free.gguf")
    write_tiny(TINY["llama"], tmp_path / "silent.gguf")
    with app_with(models_dir=tmp_path) as client:
        assert client.post("/api/show", json={"model": "free"}).json()["license"] == "apache-2.0"
        assert "license" not in client.post("/api/show", json={"model": "silent"}).json()


def test_blob_upload_is_rejected_with_the_reason(client):
    path = "/api/blobs/sha256:" + "0" * 64
    reply = client.post(path, content=b"GGUF\x03\x00")
    assert reply.status_code == 403 and "models folder" in reply.json()["error"]
    assert client.head(path).status_code == 404


@pytest.mark.parametrize("more", [{}, {"raw": True}])
def test_raw_prompt_keeps_its_format_too(client, more):
    body = {"model": "tiny", "prompt": "hi", "format": {"enum": ["yes", "no"]}, "options": {"num_predict": 20}}
    reply = client.post("/api/generate", json={**body, **more, "stream": False}).json()
    assert json.loads(reply["response"]) in ("yes", "no")
    wrong = client.post("/api/generate", json={**body, **more, "format": {"type": "zzz"}})
    assert wrong.status_code == 400 and "format" in wrong.json()["error"]
