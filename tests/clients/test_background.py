"""OpenAI's own SDK and responses in the background: polled, cancelled, and streamed again after a lost connection."""

import time

import httpx
import openai
import pytest

from tests.clients.test_responses import FIELDS, connect, events_of
from woolly.serving.generation import resumable_streams

LATER = {**FIELDS, "background": True}


@pytest.fixture
def client(scripted):
    with connect(scripted) as client:
        yield client


def polled(client, id):
    """The response as soon as it has ended; the statuses before it are those of one under way."""
    end = time.monotonic() + 120
    while (response := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        assert time.monotonic() < end
        time.sleep(0.01)
    return response


def test_response_is_polled_until_it_ends(client, scripted):
    scripted.says("Two.")
    queued = client.responses.create(**LATER, metadata={"a": "b"})
    assert (queued.status, queued.output, queued.background) == ("queued", [], True)
    response = polled(client, queued.id)
    assert (response.status, response.output_text, response.metadata) == ("completed", "Two.", {"a": "b"})
    assert response.created_at == queued.created_at and response.background
    later = client.responses.create(**FIELDS, previous_response_id=queued.id)
    assert later.usage.input_tokens > response.usage.input_tokens
    client.responses.delete(queued.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(queued.id)


def test_stream_continues_without_its_reader_and_can_be_read_again(client, scripted):
    scripted.says("one two three four five six seven")
    with client.responses.create(**LATER, stream=True) as stream:
        seen = [next(stream) for _ in range(6)]
    id = seen[0].response.id
    assert polled(client, id).status == "completed"
    rest = list(client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number))
    numbers = [event.sequence_number for event in (*seen, *rest)]
    assert numbers == list(range(len(numbers))) and rest[-1].type == "response.completed"
    text = "".join(event.delta for event in (*seen, *rest) if event.type == "response.output_text.delta")
    assert text == "one two three four five six seven" == rest[-1].response.output_text
    whole = httpx.get(f"{scripted.url}/v1/responses/{id}?stream=true", timeout=60).text
    assert [event.type for event in events_of(whole)] == [event.type for event in (*seen, *rest)]
    behind = httpx.get(f"{scripted.url}/v1/responses/{id}?stream=true&starting_after={numbers[-1]}", timeout=60)
    assert behind.status_code == 200 and behind.text == ""


def test_running_response_can_be_followed_and_cancelled_but_not_deleted(client, scripted):
    scripted.says("x" * 5000)
    id = client.responses.create(**LATER).id
    stream = client.responses.retrieve(id, stream=True)
    seen = [next(stream) for _ in range(5)]
    assert client.responses.retrieve(id).status == "in_progress"
    with pytest.raises(openai.ConflictError, match="cancel it first"):
        client.responses.delete(id)
    assert client.responses.cancel(id).status == "cancelled"
    seen += stream
    assert (seen[-1].type, seen[-1].response.status) == ("response.failed", "cancelled")
    assert polled(client, id).status == "cancelled"
    client.responses.delete(id)


def test_dropped_stream_cancels_its_response(client, scripted):
    scripted.says("x" * 5000)
    id = client.responses.create(**LATER).id
    httpx.delete(f"{scripted.url}/v1/stream", params={"conv_id": id}, timeout=60)
    assert polled(client, id).status == "cancelled"


@pytest.mark.parametrize("is_stream", [False, True])
def test_unanswerable_response_fails_or_is_rejected(small, is_stream):
    with connect(small) as client:
        fields = {**LATER, "input": "x" * 700, "stream": is_stream}
        if is_stream:
            with pytest.raises(openai.BadRequestError, match="context"):
                client.responses.create(**fields)
        else:
            failed = polled(client, client.responses.create(**fields).id)
            assert failed.status == "failed" and failed.error.code == "context_length_exceeded"


def test_full_context_is_incomplete_when_polled(small):
    small.says("x" * 600)
    with connect(small) as client:
        response = polled(client, client.responses.create(**{**LATER, "input": "x" * 100}).id)
    assert response.status == "incomplete" and response.output[0].status == "incomplete"


def test_background_response_locks_its_conversation_until_it_ends(client, scripted):
    scripted.says("x" * 5000)
    talk = client.conversations.create().id
    id = client.responses.create(**LATER, conversation=talk).id
    with pytest.raises(openai.ConflictError):
        client.responses.create(**LATER, conversation=talk)
    client.responses.cancel(id)
    polled(client, id)
    scripted.says("Two.")
    polled(client, client.responses.create(**LATER, conversation=talk).id)
    assert [item.content[0].text for item in client.conversations.items.list(talk, order="asc")] == ["hi", "Two."]


def test_only_background_responses_can_be_streamed_again(client, scripted):
    scripted.says("Two.")
    id = client.responses.create(**FIELDS).id
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.retrieve(id, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_gone", stream=True)
    with pytest.raises(openai.BadRequestError, match="starting_after"):
        client.responses.retrieve(id, stream=True, starting_after=-1)


def test_lost_events_are_reported(client, scripted, monkeypatch):
    monkeypatch.setattr(resumable_streams, "_MAX_BYTES", 1024)  # fewer than its last event has
    scripted.says("one two three four five six seven eight nine ten")
    id = client.responses.create(**LATER).id
    last = polled(client, id)
    with pytest.raises(openai.BadRequestError, match="no longer"):
        client.responses.retrieve(id, stream=True, starting_after=1)
    assert last.status == "completed"


def test_too_many_responses_are_rejected_and_leave_no_slot_taken(client, scripted, monkeypatch):
    scripted.says("x" * 5000)
    monkeypatch.setattr(resumable_streams, "_MAX_STREAMS", 2)
    scripted.app.state.streams._streams.clear()
    ids = [client.responses.create(**LATER).id for _ in range(2)]
    with pytest.raises(openai.InternalServerError, match="all 2 resumable streams are in use"):
        client.responses.create(**LATER)
    for id in ids:
        client.responses.cancel(id)
        polled(client, id)
    end = time.monotonic() + 60
    while scripted.app.state.generator.admission.n_open:
        assert time.monotonic() < end
        time.sleep(0.01)
