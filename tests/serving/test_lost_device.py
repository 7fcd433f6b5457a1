"""A GPU that fails in mid-answer: requests get the sentence, the server lives and loads the model again."""

import threading
import time

import pytest

from tests.serving.conftest import WAIT
from woolly.errors import DeviceError
from woolly.runtime.cpu import CpuProgram
from woolly.serving.loading import manager

ASKED = {"model": "tiny", "prompt": "sheep", "max_tokens": 6, "temperature": 0}
SENTENCE = "the GPU failed: an illegal memory access was encountered"


class Card:
    """What the programs of this test run on, and how often a model was opened."""

    def __init__(self, monkeypatch):
        self.lost = set()  # programs, by their identity
        self.may_open = threading.Event()
        self.may_open.set()
        self.refusal = None
        self.opened = []
        run, open_model = CpuProgram.run, manager.open_model

        def failing(program, *given):
            if id(program) in self.lost:
                raise DeviceError(SENTENCE, code="lost", remedy="load the model again")
            return run(program, *given)

        def opening(path, options):
            assert self.may_open.wait(WAIT)
            if self.refusal is not None:
                raise self.refusal
            llm = open_model(path, options)
            self.opened.append(llm)
            return llm

        monkeypatch.setattr(CpuProgram, "run", failing)
        monkeypatch.setattr(manager, "open_model", opening)

    def fail(self):
        self.lost.add(id(self.opened[-1].engine.program))


@pytest.fixture
def card(monkeypatch):
    card = Card(monkeypatch)
    yield card
    card.may_open.set()


@pytest.fixture
def served(app_with, card):
    with app_with() as client:
        client.app.state.health.set("ready")
        yield client


def settled(client, path, status):
    """The reply, as soon as it has this status."""
    end = time.monotonic() + WAIT
    while (reply := client.get(path)).status_code != status and time.monotonic() < end:
        time.sleep(0.01)
    assert reply.status_code == status, reply.text
    return reply


def test_a_server_whose_gpu_fails_loads_its_model_again(served, card):
    before = served.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
    assert served.get("/health").status_code == 200
    card.may_open.clear()
    card.fail()
    reply = served.post("/v1/completions", json=ASKED)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "device_failed")
    assert reply.json()["error"]["message"].startswith(SENTENCE)

    told = served.get("/health")
    assert (told.status_code, told.json()["status"]) == (503, "failed")
    assert told.json()["error"]["message"] == f"{SENTENCE}; tiny is loaded again"
    assert served.get("/health/ready").status_code == 503
    refused = served.post("/v1/completions", json={**ASKED, "stream": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "device_failed")
    assert int(refused.headers["retry-after"]) >= 1

    card.may_open.set()
    settled(served, "/health", 200)
    assert served.post("/v1/completions", json=ASKED).json()["choices"][0]["text"] == before
    assert len(card.opened) == 2 and card.opened[0].is_closed


def test_a_stream_that_its_gpu_leaves_ends_with_the_sentence(served, card, brake):
    with served.stream("POST", "/v1/completions", json={**ASKED, "max_tokens": 100, "stream": True}) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: ")
        card.fail()
        brake.let_go()
        rest = "\n".join(lines)
    assert SENTENCE in rest and "device_failed" in rest
    settled(served, "/health", 200)


def test_a_model_that_cannot_be_loaded_again_is_told_until_it_is(served, card):
    assert served.post("/v1/completions", json=ASKED).status_code == 200
    card.refusal = DeviceError("the GPU has fallen off the bus", code="lost")
    card.fail()
    assert served.post("/v1/completions", json=ASKED).status_code == 503
    end = time.monotonic() + WAIT
    while "bus" not in (told := served.get("/health").json()["error"]["message"]) and time.monotonic() < end:
        time.sleep(0.01)
    assert told == (
        f"{SENTENCE}; tiny is loaded again, but that failed: the GPU has fallen off the bus; restart the server"
    )
    again = served.post("/v1/completions", json=ASKED)
    assert (again.status_code, again.json()["error"]["message"]) == (503, told)
    card.refusal = None
    assert served.post("/models/load", json={"model": "tiny"}).status_code == 200
    assert served.get("/health").status_code == 200
    assert served.post("/v1/completions", json=ASKED).status_code == 200


def test_the_driver_tells_once_that_its_device_is_lost(served, card):
    assert served.post("/v1/completions", json=ASKED).status_code == 200
    llm, told = card.opened[0], []
    llm.driver.on_fault = lambda: told.append(llm.driver.fault)
    card.fail()
    for _ in range(2):
        with pytest.raises(DeviceError, match="illegal"):
            llm.logits([1, 2, 3])
    assert [str(fault) for fault in told] == [f"{SENTENCE}; load the model again"]
