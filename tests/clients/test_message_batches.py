"""Anthropic's own SDK against /v1/messages/batches: its types read the batches, its decoder the results."""

import asyncio
import time

import pytest

from tests.clients.test_anthropic import FIELDS, anthropic, connect
from woolly.serving.batches.job import Job


@pytest.fixture
def client(scripted):
    with connect(scripted) as client:
        yield client


def requests(*ids, **more):
    return [{"custom_id": id, "params": {**FIELDS, "max_tokens": 30, **more}} for id in ids]


def ended(client, id):
    end = time.monotonic() + 120
    while (batch := client.messages.batches.retrieve(id)).processing_status != "ended":
        assert time.monotonic() < end, batch
        time.sleep(0.01)
    return batch


def results(client, id):
    return {one.custom_id: one.result for one in client.messages.batches.results(id)}


def kept(store):
    return {path.name for path in store.folder.iterdir() if path.suffix in (".json", ".jsonl")}


def test_batch_from_requests_to_results(client, scripted):
    scripted.says("Hello.")
    store = scripted.app.state.batches.store
    store.prepare()
    others = kept(store)  # of other tests, which have the same server
    asked = [*requests("a", "b"), {"custom_id": "bad", "params": {"model": "tiny", "messages": []}}]
    asked += [{"custom_id": "streams", "params": {**FIELDS, "stream": True}}]
    batch = client.messages.batches.create(requests=asked)
    assert batch.id.startswith("msgbatch_") and batch.type == "message_batch"
    assert sum(batch.request_counts.model_dump().values()) == 4
    batch = ended(client, batch.id)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (2, 2, 0) and batch.ended_at >= batch.created_at
    found = results(client, batch.id)
    assert [found[id].type for id in ("a", "b", "bad", "streams")] == ["succeeded", "succeeded", "errored", "errored"]
    message = found["a"].message
    assert message.content[0].text == "Hello." and message.id.startswith("msg_") and message.id != found["b"].message.id
    assert (
        found["bad"].error.error.type == "invalid_request_error"
        and "cannot be streamed" in found["streams"].error.error.message
    )
    assert batch.id in [one.id for one in client.messages.batches.list()]
    gone = client.messages.batches.delete(batch.id)
    assert gone.type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)
    assert kept(store) == others


def test_batches_are_paginated_and_separate_from_openai_batches(client, scripted):
    scripted.says("Hello.")
    made = [client.messages.batches.create(requests=requests("a")).id for _ in range(3)]
    for id in made:
        ended(client, id)
    page = client.messages.batches.list(limit=2)
    assert page.has_more and len(page.data) == 2
    assert {one.id for one in page} == set(made)  # the SDK asks for the next page
    first, second, third = (one.id for one in client.messages.batches.list(limit=3))
    assert [one.id for one in client.messages.batches.list(limit=1, before_id=third).data] == [second]
    assert not client.messages.batches.list(before_id=first).data
    listed = client.get("/v1/batches", cast_to=object)
    assert not {one["id"].rpartition("_")[2] for one in listed["data"]} & {id.rpartition("_")[2] for id in made}
    for id in made:
        client.messages.batches.delete(id)


def test_cancelled_batch_lists_unsent_requests(client, scripted, monkeypatch):
    scripted.says("Hello.")
    plain = Job._ask

    async def slow(job, row):
        while row.number > 0 and not job.is_cancelled:
            await asyncio.sleep(0.005)
        return await plain(job, row)

    monkeypatch.setattr(Job, "_ask", slow)
    id = client.messages.batches.create(requests=requests("a", "b", "c")).id
    while client.messages.batches.retrieve(id).request_counts.succeeded < 1:
        time.sleep(0.01)
    for early in (
        lambda: client.messages.batches.delete(id),
        lambda: client.get(f"/v1/messages/batches/{id}/results", cast_to=object),
    ):
        with pytest.raises(anthropic.APIStatusError):
            early()
    stopping = client.messages.batches.cancel(id)
    assert stopping.processing_status == "canceling" and stopping.cancel_initiated_at is not None
    batch = ended(client, id)
    assert (batch.request_counts.succeeded, batch.request_counts.canceled) == (1, 2)
    assert [one.type for one in results(client, id).values()] == ["succeeded", "canceled", "canceled"]
    with pytest.raises(anthropic.APIStatusError, match="cancelled"):
        client.messages.batches.cancel(id)
    client.messages.batches.delete(id)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "requests"),
        ([{"custom_id": "a b", "params": {}}], "custom_id"),
        ([{"custom_id": "x" * 65, "params": {}}], "custom_id"),
        ([{"custom_id": "a", "params": 5}], "params"),
        ([{"custom_id": "a", "params": {}}] * 2, "twice"),
    ],
)
def test_unsupported_requests_are_rejected_by_name(client, asked, says):
    with pytest.raises(anthropic.BadRequestError, match=says):
        client.messages.batches.create(requests=asked)


def test_ids_of_other_clients_are_not_found(client):
    for id in (
        "msgbatch_" + "0" * 32,
        "batch_" + "0" * 32,
        "msgbatch_..%2f..%2fx",
        "msgbatch_",
        "msgbatch_" + "a" * 5000,
    ):
        for method in ("GET", "DELETE"):
            with pytest.raises(anthropic.NotFoundError):
                client.request(object, _options(method, f"/v1/messages/batches/{id}"))


def _options(method, url):
    from anthropic._models import FinalRequestOptions

    return FinalRequestOptions.construct(method=method.lower(), url=url)
