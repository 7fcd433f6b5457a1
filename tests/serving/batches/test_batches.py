"""/v1/files and /v1/batches: OpenAI's shapes, each client its own, and batches that a restart goes on with."""

import asyncio
import itertools
import json
import time
from types import SimpleNamespace

import pytest

from woolly.serving.batches.job import Job

ENDPOINT = "/v1/completions"
ENDS = ("completed", "failed", "cancelled")


def rows(n=3, **more):
    body = {"model": "tiny", "prompt": "One,", "max_tokens": 3, **more}
    return [{"custom_id": f"r{i}", "method": "POST", "url": ENDPOINT, "body": body} for i in range(n)]


def upload(client, values, headers=None, purpose="batch"):
    data = "".join(json.dumps(one) + "\n" for one in values)
    files = {"file": ("rows.jsonl", data.encode())}
    return client.post("/v1/files", data={"purpose": purpose}, files=files, headers=headers)


def ended(client, id, headers=None):
    end = time.monotonic() + 120
    while (batch := client.get(f"/v1/batches/{id}", headers=headers).json())["status"] not in ENDS:
        assert time.monotonic() < end, batch
        time.sleep(0.01)
    return batch


@pytest.fixture
def app(app_with, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    return lambda **settings: app_with(batches_dir=tmp_path / "batches", **settings)


def test_batch_from_upload_to_download(app):
    with app() as client:
        file = upload(client, [*rows(3), {"custom_id": "bad", "url": ENDPOINT, "body": {"prompt": 5}}]).json()
        assert file["object"] == "file" and file["purpose"] == "batch" and "owner" not in file
        batch = client.post("/v1/batches", json={"input_file_id": file["id"], "endpoint": ENDPOINT}).json()
        assert batch["object"] == "batch" and batch["status"] == "validating"
        batch = ended(client, batch["id"])
        assert batch["status"] == "completed" and batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
        content = client.get(f"/v1/files/{batch['output_file_id']}/content").text
        assert [json.loads(line)["custom_id"] for line in content.splitlines()] == ["r0", "r1", "r2"]
        errors = client.get(f"/v1/files/{batch['error_file_id']}/content").text
        assert json.loads(errors)["custom_id"] == "bad"
        listed = client.get("/v1/batches").json()
        assert [one["id"] for one in listed["data"]] == [batch["id"]] and not listed["has_more"]
        assert len(client.get("/v1/files").json()["data"]) == 3
        assert client.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
        assert client.get(f"/v1/files/{file['id']}").status_code == 404


def outputs_of(client, values, endpoint):
    """The bodies of a batch's replies."""
    file = upload(client, values).json()
    batch = client.post("/v1/batches", json={"input_file_id": file["id"], "endpoint": endpoint}).json()
    batch = ended(client, batch["id"])
    assert batch["status"] == "completed" and batch["error_file_id"] is None, batch
    text = client.get(f"/v1/files/{batch['output_file_id']}/content").text
    return [json.loads(line)["response"]["body"] for line in text.splitlines()]


def test_replies_have_the_fields_of_live_ones(app):
    with app() as client:
        (body,) = outputs_of(client, rows(1), ENDPOINT)
        live = client.post(ENDPOINT, json=rows(1)[0]["body"]).json()
    assert body["system_fingerprint"] == live["system_fingerprint"]
    assert body["usage"] == live["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}


def test_batch_of_responses_is_answered(app):
    endpoint = "/v1/responses"
    body = {"model": "tiny", "input": "One,", "max_output_tokens": 3, "temperature": 0}
    values = [{"custom_id": f"r{i}", "method": "POST", "url": endpoint, "body": body} for i in range(2)]
    with app() as client:
        bodies = outputs_of(client, values, endpoint)
        live = client.post(endpoint, json=body).json()
        values.append({"custom_id": "b", "url": endpoint, "body": {**body, "background": True}})
        file = upload(client, values).json()
        batch = client.post("/v1/batches", json={"input_file_id": file["id"], "endpoint": endpoint}).json()
        batch = ended(client, batch["id"])
        again = client.get(f"/v1/files/{batch['output_file_id']}/content").text
        errors = client.get(f"/v1/files/{batch['error_file_id']}/content").text
    texts = [one["output"][0]["content"][0]["text"] for one in (*bodies, live)]
    assert len(set(texts)) == 1 and all(one["object"] == "response" for one in bodies)
    assert bodies[0]["id"] != bodies[1]["id"] and not bodies[0]["store"]
    assert "background: " in errors and [json.loads(line)["custom_id"] for line in again.splitlines()] == ["r0", "r1"]


def test_files_have_anthropics_fields_for_its_clients(app):
    with app() as client:
        file = upload(client, rows(1)).json()
        theirs = {"anthropic-version": "2023-06-01", "anthropic-beta": "files-api-2025-04-14"}
        listed = client.get("/v1/files", headers=theirs).json()
        one = client.get(f"/v1/files/{file['id']}", headers=theirs).json()
        assert listed == {"data": [one], "has_more": False, "first_id": file["id"], "last_id": file["id"]}
        assert one["type"] == "file" and one["size_bytes"] == file["bytes"] and one["created_at"].endswith("Z")
        deleted = client.delete(f"/v1/files/{file['id']}", headers=theirs).json()
        assert deleted == {"id": file["id"], "type": "file_deleted"}
        assert client.get("/v1/files", headers=theirs).json()["first_id"] is None


def test_clients_do_not_see_each_other(app):
    mine, others = {"X-API-Key": "a" * 8}, {"X-API-Key": "b" * 8}
    with app(api_key=("a" * 8, "b" * 8)) as client:
        id = upload(client, rows(1), mine).json()["id"]
        assert client.get(f"/v1/files/{id}/content", headers=others).status_code == 404
        assert client.get("/v1/files", headers=others).json()["data"] == []
        body = {"input_file_id": id, "endpoint": ENDPOINT}
        assert client.post("/v1/batches", json=body, headers=others).status_code == 404
        batch = client.post("/v1/batches", json=body, headers=mine).json()
        assert client.get(f"/v1/batches/{batch['id']}", headers=others).status_code == 404
        assert ended(client, batch["id"], mine)["status"] == "completed"


def test_batch_resumes_after_a_restart_with_the_same_bytes(app):
    plain = Job._ask
    with app() as client:
        id = upload(client, rows(6, temperature=1.2)).json()["id"]
        body = {"input_file_id": id, "endpoint": ENDPOINT}
        whole = ended(client, client.post("/v1/batches", json=body).json()["id"])
        content = client.get(f"/v1/files/{whole['output_file_id']}/content").content
        n_left = [2]

        async def stalls(job, row):
            n_left[0] -= 1
            if n_left[0] < 0:
                await asyncio.Event().wait()
            return await plain(job, row)

        Job._ask = stalls
        try:
            batch = client.post("/v1/batches", json=body).json()
            while client.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"] < 2:
                time.sleep(0.01)
        finally:
            Job._ask = plain
    with app() as client:
        found = client.get(f"/v1/batches/{batch['id']}").json()
        assert found["status"] == "in_progress"
        client.portal.call(client.app.state.batches.wake)
        again = ended(client, batch["id"])
        assert again["status"] == "completed"
        assert client.get(f"/v1/files/{again['output_file_id']}/content").content == content


def test_cancelled_batch_keeps_its_answers(app):
    plain = Job._ask

    async def slow(job, row):
        while row.number > 1 and not job.is_cancelled:
            await asyncio.sleep(0.005)
        return await plain(job, row)

    Job._ask = slow
    try:
        with app() as client:
            id = upload(client, rows(5)).json()["id"]
            batch = client.post("/v1/batches", json={"input_file_id": id, "endpoint": ENDPOINT}).json()
            while client.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"] < 2:
                time.sleep(0.01)
            assert client.delete(f"/v1/files/{id}").status_code == 409
            assert client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
            batch = ended(client, batch["id"])
            assert batch["status"] == "cancelled" and batch["request_counts"]["completed"] == 2
            assert len(client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()) == 2
            assert client.post(f"/v1/batches/{batch['id']}/cancel").status_code == 409
    finally:
        Job._ask = plain


def test_unsupported_batch_is_rejected_by_name(app):
    with app(max_files="4000") as client:
        assert "purpose" in upload(client, rows(1), purpose="fine-tune").json()["error"]["message"]
        assert "form" in client.post("/v1/files", json={"purpose": "batch"}).json()["error"]["message"]
        assert client.post("/v1/files", data={"purpose": "batch"}, files={"other": b"x"}).status_code == 400
        assert upload(client, rows(60)).status_code == 413
        body = {"input_file_id": "file-" + "0" * 32, "endpoint": ENDPOINT}
        assert client.post("/v1/batches", json=body).status_code == 404
        assert client.post("/v1/batches", json={**body, "endpoint": "/v1/images"}).status_code == 400
        for id in ("../sessions", "file-..", "batch_x"):
            assert client.get(f"/v1/files/{id}").status_code == 404
        small = upload(client, ["hi"]).json()["id"]  # a chat in a batch of completions
        batch = client.post("/v1/batches", json={"input_file_id": small, "endpoint": ENDPOINT}).json()
        assert ended(client, batch["id"])["request_counts"] == {"total": 1, "completed": 0, "failed": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"a": "x" * 513}},
        {"metadata": {"a" * 65: "x"}},
        {"metadata": {str(i): "x" for i in range(17)}},
        {"completion_window": "x" * 1000},
    ],
)
def test_stored_batch_data_is_bounded(app, more):
    with app() as client:
        body = {"input_file_id": upload(client, rows(1)).json()["id"], "endpoint": ENDPOINT}
        assert client.post("/v1/batches", json={**body, **more}).status_code == 400
        fits = {"metadata": {f"{i:064}": "v" * 512 for i in range(16)}}
        assert client.post("/v1/batches", json={**body, **fits}).json()["metadata"] == fits["metadata"]


def test_ended_batch_can_be_deleted_and_the_oldest_are_dropped(app, monkeypatch):
    monkeypatch.setattr("woolly.serving.batches.store._MAX_ENDED_BATCHES", 2)
    seconds = SimpleNamespace(time=lambda: next(times))  # the age of a batch is in whole seconds
    times = itertools.count(1000)
    monkeypatch.setattr("woolly.serving.batches.store.time", seconds)
    mine, others = {"X-API-Key": "a" * 8}, {"X-API-Key": "b" * 8}
    with app(api_key=("a" * 8, "b" * 8)) as client:
        made = []
        for headers in (others, mine, mine, mine, mine):
            body = {"input_file_id": upload(client, rows(1), headers).json()["id"], "endpoint": ENDPOINT}
            made.append(client.post("/v1/batches", json=body, headers=headers).json()["id"])
            ended(client, made[-1], headers)
        listed = [one["id"] for one in client.get("/v1/batches", headers=mine).json()["data"]]
        assert listed == [made[4], made[3], made[2]]
        assert client.get(f"/v1/batches/{made[0]}", headers=others).status_code == 200
        assert client.delete(f"/v1/batches/{made[3]}", headers=others).status_code == 404
        assert client.delete(f"/v1/batches/{made[3]}", headers=mine).json()["deleted"] is True
        assert client.get(f"/v1/batches/{made[3]}", headers=mine).status_code == 404
