"""Streams that are kept under the name of their conversation."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from woolly.serving.generation import resumable_streams
from woolly.serving.model_manager import manager

ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "stream": True, "temperature": 0}
NAMED = {"X-Conversation-Id": "talk::org/model"}


def test_stream_can_be_resumed_from_any_byte_until_deleted(app_with):
    with app_with() as client:
        first = client.post("/v1/chat/completions", json=ASKED, headers=NAMED).text
        assert first.endswith("data: [DONE]\n\n")
        place = {"conv_id": "talk::org/model"}
        assert client.get("/v1/stream", params=place).text == first
        assert client.get("/v1/stream", params={**place, "from": 40}).text == first[40:]
        (known,) = client.post("/v1/streams/lookup", json={"conversation_ids": ["talk", "other"]}).json()
        assert known["is_done"] and known["total_bytes"] == len(first.encode())
        assert client.get("/v1/stream", params={**place, "from": 10**6}).status_code == 400
        assert client.delete("/v1/stream", params=place).status_code == 204
        assert client.get("/v1/stream", params=place).status_code == 404


def test_answer_continues_without_its_reader(app_with):
    with app_with() as client:
        asked = {**ASKED, "max_tokens": 60, "ignore_eos": True}
        with client.stream("POST", "/v1/chat/completions", json=asked, headers=NAMED) as reply:
            next(reply.iter_bytes())
        end = time.monotonic() + 60
        while time.monotonic() < end:
            (kept,) = client.post("/v1/streams/lookup", json={"conversation_ids": ["talk"]}).json()
            if kept["is_done"]:
                break
            time.sleep(0.02)
        whole = client.get("/v1/stream", params={"conv_id": "talk::org/model"}).text
        assert '"predicted_n":60,' in whole and whole.endswith("data: [DONE]\n\n")


def test_stream_belongs_to_the_client_that_requested_it(app_with):
    with app_with(api_key=("one", "two")) as client:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        client.post("/v1/chat/completions", json=ASKED, headers={**NAMED, **one})
        place = {"conv_id": "talk::org/model"}
        assert client.get("/v1/stream", params=place, headers=two).status_code == 404
        assert client.get("/v1/stream", params=place, headers=one).status_code == 200


def test_client_cannot_evict_the_stream_of_another(app_with, monkeypatch):
    monkeypatch.setattr(resumable_streams, "_MAX_STREAMS", 4)
    place = {"conv_id": "talk::org/model"}
    with app_with(api_key=("one", "two")) as client:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        asked = {**ASKED, "max_tokens": 1}
        client.post("/v1/chat/completions", json=asked, headers={**NAMED, **one})
        for i in range(8):
            client.post("/v1/chat/completions", json=asked, headers={"X-Conversation-Id": f"talk {i}", **two})
        assert client.get("/v1/stream", params=place, headers=one).status_code == 200
        assert client.get("/v1/stream", params={"conv_id": "talk 7"}, headers=two).status_code == 200
        assert client.get("/v1/stream", params={"conv_id": "talk 0"}, headers=two).status_code == 404


def test_clock_change_drops_no_stream(app_with, monkeypatch):
    with app_with() as client:
        client.post("/v1/chat/completions", json=ASKED, headers=NAMED)
        ahead = time.time() + 10**6
        monkeypatch.setattr(resumable_streams.time, "time", lambda: ahead)
        assert client.get("/v1/stream", params={"conv_id": "talk::org/model"}).status_code == 200


def test_failed_stream_creation_leaves_nothing_behind(app_with, monkeypatch):
    monkeypatch.setattr(resumable_streams, "_MAX_STREAMS", 0)
    pop_all, popped = AsyncExitStack.pop_all, []
    # A stack that nobody closes stays alive, so that the garbage collector does not close it.
    monkeypatch.setattr(AsyncExitStack, "pop_all", lambda self: popped.append(pop_all(self)) or popped[-1])
    with app_with() as client:
        reply = client.post("/v1/chat/completions", json=ASKED, headers=NAMED)
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "too_many_streams"
        generator = client.app.state.generator
        assert not generator.running and generator.admission.n_open == 0
        assert not any(slot.users for slot in client.app.state.models.loaded_models)


def test_stream_waits_for_its_model_without_its_client(app_with, monkeypatch):
    go_on, place = threading.Event(), {"conv_id": "talk::org/model"}
    real = manager.open_model

    def open_model(*given):
        assert go_on.wait(60)
        return real(*given)

    monkeypatch.setattr(manager, "open_model", open_model)
    with app_with() as client, ThreadPoolExecutor() as pool:

        def ask():
            return client.post("/v1/chat/completions", json=ASKED, headers=NAMED)

        def is_waiting():
            return bool(client.post("/v1/streams/lookup", json={"conversation_ids": ["talk"]}).json())

        first = pool.submit(ask)
        until(is_waiting)
        reply = client.get("/v1/stream", params=place)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_loading")
        assert client.delete("/v1/stream", params=place).status_code == 204
        assert (first.result().status_code, first.result().json()["error"]["code"]) == (400, "request_cancelled")
        assert client.get("/v1/stream", params=place).status_code == 404
        second = pool.submit(ask)
        until(is_waiting)
        go_on.set()
        assert second.result().text.endswith("data: [DONE]\n\n")
        assert client.get("/v1/stream", params=place).text == second.result().text


def test_stream_that_does_not_start_is_not_kept(app_with):
    with app_with() as client:
        reply = client.post("/v1/chat/completions", json={**ASKED, "model": "none"}, headers=NAMED)
        assert reply.status_code == 404
        assert client.post("/v1/streams/lookup", json={"conversation_ids": ["talk"]}).json() == []


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
