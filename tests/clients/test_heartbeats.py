"""While a long prompt is computed, each dialect's stream has beats that its SDK takes for data and for nothing new."""

import contextlib
import json
import threading

import httpx
import pytest

from tests.clients.test_anthropic import read
from tests.clients.test_responses import events_of
from woolly.serving.dialects import heartbeat

WAIT = 60  # seconds after which the engine goes on by itself, so that a stream without a beat fails and ends


@contextlib.contextmanager
def holding(driver):
    """Keeps the engine's thread busy, as a long prompt does, until the event that it gives is set."""
    is_held, may_go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=driver.call, args=(lambda _: (is_held.set(), may_go_on.wait(WAIT)),))
    thread.start()
    assert is_held.wait(WAIT)
    try:
        yield may_go_on
    finally:
        may_go_on.set()
        thread.join()


@pytest.fixture
def post(scripted, monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS", 0.02)
    scripted.says("Done.")
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    httpx.post(scripted.url + "/v1/chat/completions", json=ask, timeout=WAIT)  # the model is loaded

    def post(path, sign, **fields):
        """The reply of a stream whose engine stands still until it has the sign of a beat."""
        with (
            holding(scripted.app.state.models.ready("tiny").model.driver) as may_go_on,
            httpx.stream("POST", scripted.url + path, json={**ask, "stream": True, **fields}, timeout=WAIT) as reply,
        ):
            seen = ""
            for text in reply.iter_text():
                seen += text
                if sign in seen:
                    may_go_on.set()
            assert reply.status_code == 200, seen
        return httpx.Response(200, text=seen, headers=reply.headers)

    return post


def test_chat_completions(post):
    first, *frames, last = post("/v1/chat/completions", '"delta":{}').text.strip().split("\n\n")
    deltas = [json.loads(frame.removeprefix("data: "))["choices"][0]["delta"] for frame in (first, *frames)]
    assert deltas[0]["role"] == "assistant" and deltas[1] == {} and last == "data: [DONE]"
    assert "".join(delta.get("content") or "" for delta in deltas) == "Done."


def test_text_completions(post):
    frames = post("/v1/completions", '"text":""', prompt="Hello", messages=None).text.strip().split("\n\n")
    choices = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames[:-1]]
    assert choices[0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
    assert "".join(choice["text"] for choice in choices) == "Done."


def test_responses(post):
    beat = '"sequence_number":2'
    events = events_of(post("/v1/responses", beat, input="Hello", messages=None).text)
    assert [event.type for event in events[:3]] == ["response.created", *["response.in_progress"] * 2]
    assert events[-1].response.output[0].content[0].text == "Done."


def test_anthropic(post):
    reply = post("/v1/messages", "event: ping", max_tokens=100)
    assert reply.text.split("\n\n")[1] == 'event: ping\ndata: {"type":"ping"}'
    assert read(reply)["content"][0]["text"] == "Done."


def test_ollama(post):
    lines = [json.loads(line) for line in post("/api/chat", '"content":""').text.splitlines()]
    assert lines[0]["message"] == {"role": "assistant", "content": ""} and not lines[0]["done"]
    assert "".join(line["message"]["content"] for line in lines) == "Done."
