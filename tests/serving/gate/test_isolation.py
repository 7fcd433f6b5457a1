"""Every route that takes an id: another key's is refused as one that does not exist, and nothing happens to it."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from woolly.sampling import Sampler

ONE, TWO = ({"x-api-key": key} for key in ("one", "two"))
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "stream": True}
ROW = {"custom_id": "a", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "x", "max_tokens": 30}}

# By what the id is of: the routes, and the body that those of POST need. `{item_id}` is of a conversation.
TAKES = {
    "answer": [("POST", "/v1/chat/completions/control", {"id": "{id}"})],
    "response": [
        ("GET", "/v1/responses/{id}", None),
        ("DELETE", "/v1/responses/{id}", None),
        ("POST", "/v1/responses/{id}/cancel", None),
        ("GET", "/v1/responses/{id}/input_items", None),
    ],
    "conversation": [
        ("GET", "/v1/conversations/{id}", None),
        ("POST", "/v1/conversations/{id}", {"metadata": {"a": "b"}}),
        ("DELETE", "/v1/conversations/{id}", None),
        ("GET", "/v1/conversations/{id}/items", None),
        ("POST", "/v1/conversations/{id}/items", {"items": [{"role": "user", "content": "hi"}]}),
        ("GET", "/v1/conversations/{id}/items/{item_id}", None),
        ("DELETE", "/v1/conversations/{id}/items/{item_id}", None),
    ],
    "file": [
        ("GET", "/v1/files/{id}", None),
        ("GET", "/v1/files/{id}/content", None),
        ("DELETE", "/v1/files/{id}", None),
    ],
    "batch": [
        ("GET", "/v1/batches/{id}", None),
        ("POST", "/v1/batches/{id}/cancel", None),
        ("DELETE", "/v1/batches/{id}", None),
    ],
    "message batch": [
        ("GET", "/v1/messages/batches/{id}", None),
        ("GET", "/v1/messages/batches/{id}/results", None),
        ("POST", "/v1/messages/batches/{id}/cancel", None),
        ("DELETE", "/v1/messages/batches/{id}", None),
    ],
    "session": [
        ("GET", "/api/v1/sessions/{session_id}", None),
        ("DELETE", "/api/v1/sessions/{session_id}", None),
    ],
    "stream": [
        ("GET", "/v1/stream?conv_id={id}", None),
        ("DELETE", "/v1/stream?conv_id={id}", None),
        ("POST", "/v1/streams/lookup", {"conversation_ids": ["{id}"]}),
    ],
}
# Ids that belong to no key: models have names, a slot holds what its last owner may see, kept requests are an admin's.
OF_NOBODY = {"/v1/models/{id}", "/api/v0/models/{id}", "/slots/{id_slot}", "/api/v1/requests/{id}"}


def test_table_has_every_route_with_an_id(client):
    paths = client.get("/openapi.json").json()["paths"]
    found = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if re.search(r"\{(\w+_)?id(_\w+)?\}", path) and path.startswith("/v1") | path.startswith("/api")
    }
    known = {(method, path) for routes in TAKES.values() for method, path, _ in routes}
    assert {one for one in found if one[1] not in OF_NOBODY} <= known


@pytest.fixture
def go_on(monkeypatch):
    """Answers wait for their first token until it is set."""
    go_on, plain = threading.Event(), Sampler.next
    monkeypatch.setattr(Sampler, "next", lambda *given: (go_on.wait(120), plain(*given))[1])
    return go_on


@pytest.fixture
def held(app_with, tmp_path, go_on):
    """A server, and ids of what key One has there while its answers run."""
    with app_with(api_key=("one", "two"), batches_dir=tmp_path / "batches") as client, ThreadPoolExecutor(1) as pool:

        def post(path, body, **more):
            reply = client.post(path, json=body, headers=ONE, **more)
            assert reply.status_code in (200, 201), reply.text
            return reply.json()

        named = {**ONE, "X-Conversation-Id": "talk"}
        reader = pool.submit(client.post, "/v1/chat/completions", json=CHAT, headers=named)
        try:
            ids = {"response": post("/v1/responses", {"model": "tiny", "input": "hi", "background": True})["id"]}
            talk = post("/v1/conversations", {"items": [{"role": "user", "content": "hi"}]})
            (item,) = client.get(f"/v1/conversations/{talk['id']}/items", headers=ONE).json()["data"]
            ids |= {"conversation": talk["id"], "item": item["id"], "stream": "talk"}
            files = {"file": ("rows.jsonl", json.dumps(ROW).encode())}
            sent = client.post("/v1/files", data={"purpose": "batch"}, files=files, headers=ONE)
            ids["file"] = sent.json()["id"]
            ids["batch"] = post("/v1/batches", {"input_file_id": ids["file"], "endpoint": "/v1/completions"})["id"]
            row = {"custom_id": "a", "params": {key: CHAT[key] for key in ("model", "messages", "max_tokens")}}
            ids["message batch"] = post("/v1/messages/batches", {"requests": [row]})["id"]
            ids["session"] = post("/api/v1/sessions", {"model_name": "tiny"})["session_id"]
            end = time.monotonic() + 60
            while not (running := [one for one in client.app.state.generator.running if one.reply_id]):
                assert time.monotonic() < end
                time.sleep(0.01)
            ids["answer"] = running[0].reply_id
            yield client, ids
        finally:
            go_on.set()
            reader.result()


def ask(client, method, path, body, headers, id, item):
    for name, value in (("{id}", id), ("{session_id}", id), ("{item_id}", item)):
        path, body = path.replace(name, value), json.loads(json.dumps(body).replace(name, value))
    reply = client.request(method, path, json=body, headers=headers)
    return reply.status_code, re.sub(r'"request_id":"[^"]*"', "", reply.text.replace(id, "ID").replace(item, "ITEM"))


def test_objects_of_another_key_do_not_exist(held):
    client, ids = held
    seen = {}
    for kind, routes in TAKES.items():
        absent = ids[kind][:-1] + ("0" if ids[kind][-1] != "0" else "1")
        for method, path, body in routes:
            found = ask(client, method, path, body, TWO, ids[kind], ids["item"])
            missing = ask(client, method, path, body, TWO, absent, ids["item"])
            assert found == missing, (method, path)
            assert found[0] == 404 or kind == "stream", (method, path, found)
            if method == "GET" and not path.endswith("results") and kind != "stream":
                seen[path] = ask(client, method, path, body, ONE, ids[kind], ids["item"])[0]
    assert set(seen.values()) == {200}, seen  # all is still there
    (kept,) = client.post("/v1/streams/lookup", json={"conversation_ids": ["talk"]}, headers=ONE).json()
    assert not kept["is_done"]
    assert ids["answer"] in {one.reply_id for one in client.app.state.generator.running}
    for path in ("/v1/responses/{}", "/v1/batches/{}", "/v1/messages/batches/{}"):
        kind = {"responses": "response", "batches": "batch", "messages": "message batch"}[path.split("/")[2]]
        status = client.get(path.format(ids[kind]), headers=ONE).json()
        assert "cancel" not in str(status.get("status", status.get("processing_status"))), status
