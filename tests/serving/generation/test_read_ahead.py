"""Messages that are read while they are typed: what it spares, when it gives way, and that no answer changes."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.serving.conftest import WAIT
from woolly.engine import EngineDriver
from woolly.llm import LLM
from woolly.runtime.cpu.program import CpuProgram
from woolly.serving.accounts.keys_file import add_key
from woolly.serving.generation import generator

PATH = "/v1/chat/completions/read_ahead"
CHAT = "/v1/chat/completions"
TYPED = "the quick brown fox jumps over the lazy dog and runs into the dark wood " * 4
LONG = TYPED + "as a fox does after a long day of jumps over dogs who do not mind it at all "
SENT = TYPED + "where it sleeps"


def body(content=TYPED, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, **more}


def load(client, **more):
    """Loads the model, with a conversation of which no other test has a page."""
    assert client.post(CHAT, json=body("load it", max_tokens=1, **more)).status_code == 200


def answer(client):
    reply = client.post(CHAT, json=body(SENT, max_tokens=8)).json()
    return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_answer_is_unchanged_and_finds_the_prefilled_prompt(app_with):
    with app_with() as client:
        load(client)
        plain, n_before = answer(client)
    with app_with() as client:
        load(client)
        reply = client.post(PATH, json=body()).json()
        assert reply["state"] == "read" and reply["read_tokens"] > 200 and reply["cached_tokens"] == 0
        again = client.post(PATH, json=body()).json()
        assert (again["read_tokens"], again["cached_tokens"]) == (0, reply["read_tokens"])
        assert answer(client) == (plain, reply["read_tokens"])
        metrics = client.get("/metrics").text
        assert 'woolly_read_ahead_total{state="read"} 2.0' in metrics
        assert f"woolly_read_ahead_tokens_total {reply['read_tokens']:.1f}" in metrics
    assert n_before == 0


@pytest.mark.parametrize("family", ["qwen35", "mamba2", "gemma3-array"])
def test_models_that_continue_from_a_saved_state_find_it(family, app_with, tmp_path):
    case = FAMILIES[family]
    if family == "gemma3-array":
        case = replace(case, extra={**case.extra, "attention.sliding_window": 40})
    write_tiny(case, tmp_path / "tiny.gguf")
    found = []
    for typed in (False, True):
        with app_with(models_dir=tmp_path, ctx_size=512) as client:
            load(client)
            n_read = client.post(PATH, json=body()).json()["read_tokens"] if typed else 0
            found.append((*answer(client), n_read))
    (plain, n_before, _), (text, n_cached, n_read) = found
    assert text == plain and n_before == 0 and n_cached == n_read > 200


def test_disabled_prefill_is_rejected_with_a_message(app_with):
    with app_with(read_ahead=False) as client:
        reply = client.post(PATH, json=body())
        assert reply.status_code == 501
        message = "reading ahead is disabled; start the server with --read-ahead"
        assert reply.json()["error"]["message"] == message
        assert client.get("/props?model=tiny").json()["read_ahead"] is False


def test_nothing_is_prefilled_behind_replicas(client, monkeypatch):
    monkeypatch.setattr("woolly.serving.settings.checks.has_replicas", lambda settings: True)
    reply = client.post(PATH, json=body())
    assert reply.status_code == 501
    assert reply.json()["error"]["message"].startswith("read-ahead is not supported with replicas")
    assert client.get("/props?model=tiny").json()["read_ahead"] is False


def test_page_learns_that_prefill_is_on(client):
    assert client.get("/props?model=tiny").json()["read_ahead"] is True


def test_no_model_is_loaded_for_prefill(app_with):
    with app_with() as client:
        reply = client.post(PATH, json=body()).json()
        assert (reply["state"], reply["read_tokens"]) == ("unloaded", 0)
        assert not client.app.state.models.loaded_models


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "messages: field required"),
        ({"messages": []}, "messages: "),
        (
            {"messages": [{"role": "assistant", "content": "Hello."}]},
            "messages: the last one is of role 'assistant'; the message that the user is writing was expected",
        ),
        ({**body(), "temperature": "hot"}, "temperature: "),
        ({**body(), "model": "nobody"}, "'nobody'"),
        (body("a b c " * 4000), "tokens"),
    ],
)
def test_invalid_body_gives_a_one_line_error(given, sentence, client):
    load(client)
    reply = client.post(PATH, json=given)
    assert reply.status_code in (400, 404), reply.text
    message = reply.json()["error"]["message"]
    assert sentence in message and "\n" not in message


def test_nothing_is_prefilled_during_an_answer(app_with, brake):
    with app_with() as client:
        load(client)
        with client.stream("POST", CHAT, json=body("other", stream=True, max_tokens=40, ignore_eos=True)) as stream:
            lines = stream.iter_lines()
            next(lines)
            reply = client.post(PATH, json=body()).json()
            assert (reply["state"], reply["read_tokens"], reply["cached_tokens"]) == ("busy", 0, 0)
            brake.let_go()


class Slow:
    """Steps that wait until they are let go, or until what runs is cancelled."""

    def __init__(self, monkeypatch):
        self.has_begun = threading.Event()
        self.goes_on = threading.Event()  # for the step under way
        self.is_off = True  # until a test begins to read
        self.n_rows = []
        plain, cancel = CpuProgram.compute, EngineDriver.cancel

        def compute(program, batch, *given):
            self.n_rows.append(len(batch.tokens))
            if len(batch.tokens) > 64:  # not a step of the answer that loaded the model, which may end late
                self.has_begun.set()
                assert self.is_off or self.goes_on.wait(WAIT)
                self.goes_on.clear()
            return plain(program, batch, *given)

        def cancelled(driver, requests):
            cancel(driver, requests)
            self.let_go()  # for good: the engine may compute a step once more

        monkeypatch.setattr(CpuProgram, "compute", compute)
        monkeypatch.setattr(EngineDriver, "cancel", cancelled)

    def let_go(self):
        self.is_off = True
        self.goes_on.set()


@pytest.fixture
def slow(monkeypatch):
    slow = Slow(monkeypatch)
    yield slow
    slow.let_go()


def begun(slow, pool, client, **more):
    """Starts to read a long message; returns when the engine computes it."""
    slow.has_begun.clear()
    slow.goes_on.clear()
    slow.is_off = False
    reading = pool.submit(lambda: client.post(PATH, json=body(LONG), **more).json())
    assert slow.has_begun.wait(60)
    return reading


def test_prefill_yields_to_an_answer(app_with, slow):
    with app_with() as client, ThreadPoolExecutor() as pool:
        load(client)
        reading = begun(slow, pool, client)
        plain = pool.submit(answer, client)
        reply = reading.result(60)
        slow.let_go()
        plain.result(60)
        assert reply["state"] == "busy" and reply["read_tokens"] < 200


def test_later_message_of_a_client_replaces_the_prefilled_one(app_with, slow):
    with app_with() as client, ThreadPoolExecutor() as pool:
        load(client)
        reading = begun(slow, pool, client)
        later = pool.submit(lambda: client.post(PATH, json=body(LONG + "where it ")).json())
        assert reading.result(60)["state"] == "replaced"
        slow.let_go()
        reply = later.result(60)
        assert reply["state"] == "read" and reply["read_tokens"] + reply["cached_tokens"] > 250


def test_replaced_message_is_abandoned_and_only_one_runs(app_with, monkeypatch):
    plain, calls = generator.format_chat, []
    has_begun, goes_on = threading.Event(), threading.Event()

    def format_chat(*given):
        calls.append(given)
        has_begun.set()
        assert goes_on.wait(WAIT)
        return plain(*given)

    with app_with() as client, ThreadPoolExecutor() as pool:
        load(client)
        monkeypatch.setattr(generator, "format_chat", format_chat)
        first = pool.submit(lambda: client.post(PATH, json=body()).json())
        assert has_begun.wait(WAIT)
        assert client.post(PATH, json=body(LONG)).json()["state"] == "busy"
        goes_on.set()
        assert first.result(WAIT)["state"] == "replaced"
        assert len(calls) == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
    ],
)
def test_conversation_with_images_audio_or_files_is_not_prefilled(part, client):
    load(client)
    before = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "A fox."}]
    reply = client.post(PATH, json={**body(), "messages": [*before, *body()["messages"]]}).json()
    assert (reply["state"], reply["read_tokens"], reply["cached_tokens"]) == ("media", 0, 0)


def test_prompt_expanded_by_its_template_is_rejected_before_tokenization(app_with, monkeypatch):
    template = "{% for i in range(1000) %}{{ messages[0].content * 10 }}{% endfor %}"
    with app_with(chat_template=template, ctx_size=64) as client:
        assert client.post(CHAT, json=body("a", max_tokens=1)).status_code == 400  # 10,000 tokens; it is loaded since
        monkeypatch.setattr(LLM, "tokenize_layout", None)
        reply = client.post(PATH, json=body())
        assert reply.status_code == 400 and "characters, but the limit is" in reply.json()["error"]["message"]


def test_prefill_uses_small_chunks(app_with, slow):
    with app_with() as client:
        load(client)
        slow.n_rows.clear()
        n_read = client.post(PATH, json=body(LONG)).json()["read_tokens"]
        assert max(slow.n_rows) <= 136 and n_read <= sum(slow.n_rows) <= n_read + 8


def test_prefill_needs_a_key_and_counts_no_request(app_with, tmp_path):
    file = tmp_path / "keys.toml"
    head = {"Authorization": f"Bearer {add_key(file, 'anna', limits={'requests_per_day': 2})}"}
    with app_with(keys_file=file, usage_file=tmp_path / "usage.db") as client:
        assert client.post(PATH, json=body()).status_code == 401
        client.headers.update(head)
        load(client)
        for _ in range(3):
            assert client.post(PATH, json=body()).json()["state"] == "read"
        assert answer(client)[1] > 200
        reply = client.post(PATH, json=body())  # two answers are all that the key has
        assert reply.status_code == 429 and "the key anna has reached its limit of 2 requests" in json.dumps(
            reply.json()
        )


def test_prefilled_tokens_count_and_a_limit_ends_prefill(app_with, tmp_path):
    file = tmp_path / "keys.toml"
    anna, bert = (
        {"Authorization": f"Bearer {add_key(file, name, limits=limits)}"}
        for name, limits in (("anna", {"tokens_per_day": 100}), ("bert", {}))
    )
    with app_with(keys_file=file) as client:
        assert client.post(CHAT, json=body("load it", max_tokens=1), headers=bert).status_code == 200
        first = client.post(PATH, json=body(), headers=anna)
        assert (first.json()["state"], first.json()["read_tokens"]) == ("limit", 128)
        assert first.headers["x-ratelimit-remaining-tokens"] == "0"
        again = client.post(PATH, json=body(LONG), headers=anna)
        assert again.status_code == 429 and "the key anna has reached its limit of 100 tokens" in json.dumps(
            again.json()
        )


def test_prefill_does_not_use_the_rate_of_requests(app_with):
    with app_with(rate_limit=2) as client:
        load(client)
        assert [client.post(PATH, json=body()).status_code for _ in range(3)] == [200, 200, 429]
        assert client.post(CHAT, json=body(max_tokens=1)).status_code == 200


@pytest.mark.parametrize("family", ["llama", "qwen35", "gemma3-array"])
def test_cached_answers_are_not_evicted_by_prefill(family, app_with, tmp_path):
    case = FAMILIES[family]
    if family == "gemma3-array":
        case = replace(case, extra={**case.extra, "attention.sliding_window": 40})
    write_tiny(case, tmp_path / "tiny.gguf")
    file = tmp_path / "keys.toml"
    anna, bert = ({"Authorization": f"Bearer {add_key(file, name, limits={})}"} for name in ("anna", "bert"))
    with app_with(models_dir=tmp_path, keys_file=file, ctx_size=512, parallel=1) as client:
        sent = body(SENT, max_tokens=1)
        assert client.post(CHAT, json=sent, headers=bert).status_code == 200
        pages = client.app.state.models.ready("tiny").model.engine.scheduler.pages
        states = {client.post(PATH, json=body(f"{i} {LONG}"), headers=anna).json()["state"] for i in range(12)}
        assert states <= {"read", "full"} and pages.index.stats().evictions > 0
        cached = client.post(CHAT, json=sent, headers=bert).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 200


def test_addresses_take_turns_and_all_yield_to_answers(client):
    load(client)
    turns = client.app.state.generator.read_ahead_tasks
    with turns.take("", "a") as turn, turns.take("", "b") as other:
        assert turn.ended is None and other.ended is None
        turns.cancel_all()
        assert turn.ended == other.ended == "busy"
    with turns.take("", "a") as turn:
        assert turn.ended is None
