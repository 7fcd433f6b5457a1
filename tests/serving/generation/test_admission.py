"""A place in the queue comes first, before a model, a template or a tokenizer; and it is always given back."""

import contextlib
import json

import pytest

from woolly import SamplingParams
from woolly.llm import LLM
from woolly.serving import GenerationRequest
from woolly.serving.errors import ApiError
from woolly.serving.generation.admission import Admission
from woolly.serving.generation.running_request import RunningRequest

HI = [{"role": "user", "content": "hi"}]
ROUTES = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/completion": {"prompt": ["hi", 5]},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/api/v1/inference/chat": {"messages": HI},
    "/api/v1/inference/stream": {"messages": HI},
    "/api/v1/inference/complete": {"prompt": "hi"},
    "/api/v1/optimized/chat/completions": {"messages": HI},
}


def untouched(*_):
    raise AssertionError("a request without a place came this far")


def fill(client, monkeypatch, n_free=0):
    admission = client.app.state.generator.admission
    monkeypatch.setattr(admission, "n_open", admission.max_open - n_free)
    return admission


@pytest.mark.parametrize("path", ROUTES)
def test_full_queue_rejects_before_the_model_is_used(client, monkeypatch, path):
    monkeypatch.setattr(client.app.state.models, "use", untouched)
    admission = fill(client, monkeypatch)
    reply = client.post(path, json=ROUTES[path])
    assert reply.status_code == 429 and reply.json()["error"]["code"] == "queue_full"
    assert int(reply.headers["retry-after"]) >= 1
    assert admission.n_open == admission.max_open


def test_full_queue_is_reported_over_a_socket_and_the_session_stays_unread(client, monkeypatch):
    session = client.post("/api/v1/sessions").json()["session_id"]
    monkeypatch.setattr(client.app.state.models, "use", untouched)
    monkeypatch.setattr(client.app.state.sessions, "messages", untouched)
    fill(client, monkeypatch)
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "messages": HI, "session_id": session})
        reported = socket.receive_json()
    assert reported["error"]["code"] == "queue_full" and reported["retry_after"] >= 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 2, "n": 3}, 200),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 2, "stream": True}, 200),
        ("/v1/chat/completions", {"messages": HI, "model": "nobody"}, 404),
        ("/v1/chat/completions", {"messages": HI, "grammar": "root ::= ("}, 400),
        ("/v1/chat/completions", {"messages": HI, "chat_template_kwargs": {"messages": 1}}, 400),
        ("/v1/completions", {"prompt": ["a", "b", [10**6]], "max_tokens": 2}, 400),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "stream": True}, 200),
        ("/completion", {"prompt": ["a", "b", [10**6]], "n_predict": 2}, 400),
        ("/completion", {"prompt": "a", "n_predict": 2, "stream": True}, 200),
        ("/completion", {"prompt": [10**6], "stream": True}, 400),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, 400),
        ("/api/v1/inference/chat", {"messages": HI, "session_id": "nobody"}, 404),
        ("/api/v1/inference/chat", {"messages": HI, "n": 0}, 400),
        ("/api/v1/inference/stream", {"messages": HI, "max_tokens": 2}, 200),
    ],
)
def test_slots_are_released_however_a_request_ends(client, path, body, status):
    reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    generator = client.app.state.generator
    assert generator.admission.n_open == 0 and generator.running == ()
    assert all(slot.users == 0 for slot in client.app.state.models.loaded_models)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/completions", {"prompt": ["a"] * 200, "max_tokens": 1}, ("200 prompts", "n=1", "144 concurrent answers")),
        (
            "/v1/completions",
            {"prompt": ["a"] * 73, "n": 2},
            ("73 prompts", "n=2", "146 answers", "144 concurrent answers"),
        ),
        ("/completion", {"prompt": ["a"] * 200}, ("200 prompts", "144 concurrent answers")),
        ("/completion", {"prompt": "a", "n_cmpl": 145}, ("n is 145", "144 concurrent answers")),
    ],
)
def test_impossible_request_is_a_400_with_the_numbers(client, path, body, says):
    reply = client.post(path, json=body)
    assert reply.status_code == 400 and "retry-after" not in reply.headers
    for words in says:
        assert words in reply.json()["error"]["message"]


def test_batch_is_admitted_completely_or_not_at_all(client, monkeypatch):
    admission = fill(client, monkeypatch, 2)
    assert client.post("/v1/completions", json={"prompt": ["a"] * 3, "max_tokens": 1}).status_code == 429
    assert client.post("/v1/completions", json={"prompt": ["a"] * 2, "max_tokens": 1}).status_code == 200
    assert admission.n_open == admission.max_open - 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/v1/inference/chat"])
def test_request_acquires_its_model_once(client, monkeypatch, path):
    # A model that is to be unloaded waits for those who hold it: whoever took it twice would wait for itself.
    models, taken = client.app.state.models, []

    def use(name, real=models.use):
        taken.append(name)
        return real(name)

    monkeypatch.setattr(models, "use", use)
    assert client.post(path, json={"messages": HI, "max_tokens": 1}).status_code == 200
    assert len(taken) == 1
    assert [slot.users for slot in models.loaded_models] == [0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/v1/inference/chat"])
def test_too_long_conversation_is_rejected_before_tokenization(client, monkeypatch, path):
    monkeypatch.setattr(LLM, "tokenize_chat", untouched)
    text = "ab " * 100_000  # 256 characters for each of 512 tokens are less than half of it
    reply = client.post(path, json={"messages": [{"role": "user", "content": text}]})
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
    assert "characters" in reply.json()["error"]["message"]


def test_request_rejected_by_the_engine_leaves_nothing_behind(client, monkeypatch):
    def fails(_):
        raise RuntimeError("no more")

    monkeypatch.setattr(RunningRequest, "start", fails)
    with contextlib.suppress(RuntimeError):
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 500
    state = client.app.state
    assert state.generator.running == () and state.generator.admission.n_open == 0
    assert [slot.users for slot in state.models.loaded_models] == [0]


def test_time_to_first_token_counts_from_the_arrival(client):
    async def story(generator):
        with generator.admit() as place:
            async with generator.open(GenerationRequest(SamplingParams(max_tokens=1), prompt="a"), place) as running:
                assert running._arrived == place.arrived

    client.portal.call(story, client.app.state.generator)


def test_stream_keeps_its_slot_until_its_end(client):
    admission, seen = client.app.state.generator.admission, []

    async def counted(self, real=RunningRequest.__anext__):
        seen.append(admission.n_open)
        return await real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningRequest, "__anext__", counted)
        body = {"messages": HI, "max_tokens": 4, "stream": True, "ignore_eos": True, "n": 2}
        text = client.post("/v1/chat/completions", json=body).text
    assert json.loads(text.split("data: ")[1])["object"] == "chat.completion.chunk"
    assert set(seen) == {2} and admission.n_open == 0


def test_full_queue_rejects_immediately_with_retry_after():
    admission = Admission(lambda: 2, 1)
    with admission.admit(1, 4.0), admission.admit(2, 4.0):
        assert (admission.n_open, admission.n_waiting) == (3, 1)
        with pytest.raises(ApiError) as caught, admission.admit(1, 4.0):
            pass
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "queue_full", 4.0)
    assert admission.n_open == 0
    with pytest.raises(ApiError, match="at most 3 concurrent answers"), admission.admit(4, 1.0):
        pass
    admission.is_draining = True
    with pytest.raises(ApiError) as caught, admission.admit(1, 1.0):
        pass
    assert caught.value.status == 503 and caught.value.retry_after
