"""Batches of messages: each key sees its own, and a deleted one is read to its end by who reads it."""

import itertools
import json
import time
from types import SimpleNamespace

import pytest

from woolly.serving.batches import store as store_module

ROUTE = "/v1/messages/batches"
PARAMS = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}


def ended(client, id, headers=None):
    end = time.monotonic() + 120
    while (batch := client.get(f"{ROUTE}/{id}", headers=headers).json())["processing_status"] != "ended":
        assert time.monotonic() < end, batch
        time.sleep(0.01)
    return batch


@pytest.fixture
def app(app_with, tmp_path):
    return lambda **settings: app_with(batches_dir=tmp_path / "batches", **settings)


def make(client, n=1, headers=None):
    body = {"requests": [{"custom_id": f"r{i}", "params": PARAMS} for i in range(n)]}
    return client.post(ROUTE, json=body, headers=headers)


def test_clients_do_not_see_each_other(app):
    with app(api_key=("one", "two")) as client:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        id = make(client, headers=one).json()["id"]
        ended(client, id, one)
        at = f"{ROUTE}/{id}"
        for method, path in (("GET", at), ("GET", f"{at}/results"), ("POST", f"{at}/cancel"), ("DELETE", at)):
            reply = client.request(method, path, headers=two)
            assert reply.status_code == 404 and reply.json()["type"] == "error", path
        assert client.get(ROUTE, headers=two).json()["data"] == []
        assert client.get(f"{at}/results", headers=one).status_code == 200


def test_openai_batch_is_not_a_message_batch(app):
    with app() as client:
        row = {"custom_id": "a", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "x", "max_tokens": 1}}
        files = {"file": ("rows.jsonl", json.dumps(row).encode())}
        file = client.post("/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
        batch = client.post("/v1/batches", json={"input_file_id": file, "endpoint": "/v1/completions"}).json()
        assert client.get(f"{ROUTE}/msg{batch['id']}").status_code == 404
        assert client.get(ROUTE).json()["data"] == []


def test_repeated_batch_has_the_same_results(app):
    with app() as client:
        texts = []
        for _ in range(2):  # the second finds the prompt in the cache
            id = make(client, 3).json()["id"]
            url = ended(client, id)["results_url"]
            assert url == f"http://testserver{ROUTE}/{id}/results"
            texts.append(client.get(url).text)
        assert texts[0] == texts[1] and len(texts[0].splitlines()) == 3


def test_results_stay_readable_while_the_batch_is_deleted(app):
    with app() as client:
        id = make(client, 40).json()["id"]
        ended(client, id)
        with client.stream("GET", f"{ROUTE}/{id}/results") as reply:
            lines = reply.iter_lines()
            next(lines)
            assert client.delete(f"{ROUTE}/{id}").status_code == 200
            assert len(list(lines)) == 39
        assert client.get(f"{ROUTE}/{id}/results").status_code == 404


def test_results_of_deleted_files_are_not_found(app):
    with app() as client:
        id = make(client).json()["id"]
        ended(client, id)
        for file in client.get("/v1/files").json()["data"]:
            client.delete(f"/v1/files/{file['id']}")
        reply = client.get(f"{ROUTE}/{id}/results")
        assert reply.status_code == 404 and "no longer exist" in reply.json()["error"]["message"]
        assert client.delete(f"{ROUTE}/{id}").status_code == 200


def test_rejected_and_dropped_batches_leave_no_file(app, monkeypatch):
    monkeypatch.setattr(store_module, "_MAX_ENDED_BATCHES", 1)
    times = itertools.count(1000)  # the age of a batch is in whole seconds
    monkeypatch.setattr(store_module, "time", SimpleNamespace(time=lambda: next(times)))
    with app() as client:
        ids = [make(client).json()["id"]]
        ended(client, ids[0])
        for _ in range(3):
            ids.append(make(client).json()["id"])
            ended(client, ids[-1])
        assert client.get(f"{ROUTE}/{ids[0]}").status_code == 404
        n_files = len(client.get("/v1/files").json()["data"])
        assert n_files == 2 * len(client.get(ROUTE).json()["data"])
        monkeypatch.setattr(store_module, "_MAX_OPEN_BATCHES", 0)
        assert make(client).status_code == 429
        assert len(client.get("/v1/files").json()["data"]) == n_files


def test_batch_without_capacity_says_so_for_each_request(app):
    with app(max_files="6000") as client:
        id = make(client, 20).json()["id"]
        batch = ended(client, id)
        counts = batch["request_counts"]
        assert counts["errored"] > 0 and counts["succeeded"] + counts["errored"] == 20
        last = json.loads(client.get(f"{ROUTE}/{id}/results").text.splitlines()[-1])["result"]
        assert last["type"] == "errored" and "are used" in last["error"]["error"]["message"]
