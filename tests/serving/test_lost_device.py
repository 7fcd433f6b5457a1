"""A GPU that fails in mid-answer: requests get the sentence, the server says so, and begins anew as it was started."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.serving.conftest import WAIT, serving
from woolly.errors import DeviceError
from woolly.runtime.cpu import CpuProgram
from woolly.serving.accounts.usage_ledger import read_usage
from woolly.serving.lifecycle import http_server
from woolly.serving.model_manager import manager

ASKED = {"model": "tiny", "prompt": "sheep", "max_tokens": 6, "temperature": 0}
SENTENCE = "the GPU failed: an illegal memory access was encountered"

# A server whose programs fail from when there is a file `fault` in its folder. As on a GPU, a fault stays until the
# process ends, whoever opens the model again.
FAULTY_MAIN = f"""
import os, subprocess
from pathlib import Path
from woolly.serving.lifecycle import http_server
make = http_server.create_app
def made(settings):
    # As an MCP server: it ends when its input does, and is waited for by nobody after a restart.
    global child
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with open("children", "a") as out:
        out.write(f"{{child.pid}}\\n")
    return make(settings)
http_server.create_app = made
from woolly.errors import DeviceError
from woolly.runtime.cpu import CpuProgram
run, lost = CpuProgram.run, []
def failing(program, *given):
    if lost or Path("fault").exists():
        Path("fault").unlink(missing_ok=True)
        lost.append(True)
        raise DeviceError({SENTENCE!r}, code="lost", remedy="start the process anew")
    return run(program, *given)
CpuProgram.run = failing
from woolly.cli import main
main()
"""


class Card:
    """Fake GPU of this process, with the models opened on it."""

    def __init__(self, monkeypatch):
        self.lost = set()  # programs, by their identity
        self.opened = []
        run, open_model = CpuProgram.run, manager.open_model

        def failing(program, *given):
            if id(program) in self.lost:
                raise DeviceError(SENTENCE, code="lost", remedy="start the process anew")
            return run(program, *given)

        def opening(path, options):
            self.opened.append(open_model(path, options))
            return self.opened[-1]

        monkeypatch.setattr(CpuProgram, "run", failing)
        monkeypatch.setattr(manager, "open_model", opening)

    def fail(self):
        self.lost.add(id(self.opened[-1].engine.program))


@pytest.fixture
def card(monkeypatch):
    return Card(monkeypatch)


@pytest.fixture
def served(app_with, card):
    with app_with() as client:
        client.app.state.health.set("ready")
        yield client


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot replace a process")
def test_server_with_a_failed_gpu_restarts_on_its_port(tiny_folder, tmp_path):
    usage = tmp_path / "usage.db"
    flags = ("--threads", "1", "--usage-file", str(usage))
    with serving(tiny_folder / "tiny.gguf", tmp_path, *flags, ctx=128, main=FAULTY_MAIN) as server:
        with server.client() as client:
            before = client.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
            (tmp_path / "fault").touch()
            reply = client.post("/v1/completions", json=ASKED)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "device_failed")
        assert reply.json()["error"]["message"] == f"{SENTENCE}; try again later"
        server.log_with("device failed", "the server restarts")
        end, answer = time.monotonic() + WAIT, None
        while answer is None or answer.status_code != 200:
            assert server.process.poll() is None and time.monotonic() < end, server.log.read_text()
            with contextlib.suppress(httpx.TransportError):  # an answer that the restart cut off
                answer = httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=WAIT)
            time.sleep(0.05)
        assert answer.json()["choices"][0]["text"] == before
        assert httpx.get(f"{server.url}/health", timeout=WAIT).status_code == 200
        assert server.log.read_text().count("listening") == 2
        if sys.platform == "linux":
            left, kept = (Path("/proc", pid) for pid in (tmp_path / "children").read_text().split())
            while left.exists():  # a zombie would stay
                assert time.monotonic() < end
                time.sleep(0.05)
            assert kept.exists()
    # An answer and a failure before, an answer after: neither process has left its last seconds out.
    assert read_usage(usage, ())[0]["requests"] >= 3


def test_usage_is_written_after_answers_interrupted_by_a_restart(monkeypatch):
    done = []

    async def note(what):
        done.append(what)

    async def restarted():
        loop, admission = asyncio.get_running_loop(), SimpleNamespace(n_open=1)

        def end_answer():  # some turns of the loop after it was cancelled
            admission.n_open = 0
            done.append("answer ended")

        def stop():
            loop.call_soon(loop.call_soon, loop.call_soon, end_answer)

        server = object.__new__(http_server._Server)
        server._settings, server._is_stopping, server._listener = SimpleNamespace(grace=0), False, None
        server._state = SimpleNamespace(
            generator=SimpleNamespace(stop=stop, admission=admission),
            batches=SimpleNamespace(stop=lambda: note("batches stopped")),
            meter=SimpleNamespace(ledger=SimpleNamespace(flush=lambda: note("usage written"))),
        )
        await server._restart()

    monkeypatch.setattr(http_server, "_LAST_WORDS", WAIT)
    monkeypatch.setattr(http_server, "_LAST_BYTES", 0)
    monkeypatch.setattr(http_server, "restart", lambda listener: done.append("restart"))
    asyncio.run(restarted())
    assert done == ["batches stopped", "answer ended", "usage written", "restart"]


def test_embedded_server_says_that_it_must_be_restarted(served, card):
    assert served.post("/v1/completions", json=ASKED).status_code == 200
    assert served.get("/health").status_code == 200
    card.fail()
    assert served.post("/v1/completions", json=ASKED).json()["error"]["code"] == "device_failed"
    reported = served.get("/health")
    assert (reported.status_code, reported.json()["status"]) == (503, "failed")
    assert reported.json()["error"]["message"] == f"{SENTENCE}; restart the server"
    assert served.get("/health/ready").status_code == 503
    refused = served.post("/v1/completions", json={**ASKED, "stream": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "device_failed")
    assert int(refused.headers["retry-after"]) >= 1
    assert len(card.opened) == 1
    # Who asks for the model by hand gets it, if the device is there again.
    assert served.post("/models/load", json={"model": "tiny"}).status_code == 200
    assert len(card.opened) == 2 and card.opened[0].is_closed
    assert served.get("/health").status_code == 200
    assert served.post("/v1/completions", json=ASKED).status_code == 200


@pytest.mark.parametrize(("begins", "words"), [(True, "the server restarts"), (False, "restart the server")])
def test_health_says_who_restarts_the_server(begins, words, served, card):
    """A server that restarted several times within a short time leaves that to others."""
    served.app.state.models.on_device_failure = lambda: begins
    assert served.post("/v1/completions", json=ASKED).status_code == 200
    card.fail()
    assert served.post("/v1/completions", json=ASKED).json()["error"]["code"] == "device_failed"
    assert served.get("/health").json()["error"]["message"] == f"{SENTENCE}; {words}"


def test_gpu_that_fails_while_a_model_opens_is_lost_too(served, monkeypatch):
    def fail(path, options):
        raise DeviceError(SENTENCE, code="lost", remedy="start the process anew")

    reported = []
    served.app.state.models.on_device_failure = lambda: reported.append(True) or True
    monkeypatch.setattr(manager, "open_model", fail)
    assert SENTENCE in served.post("/v1/completions", json=ASKED).json()["error"]["message"]
    assert reported == [True]
    refused = served.post("/v1/completions", json=ASKED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "device_failed")
    assert served.get("/health").json()["error"]["message"] == f"{SENTENCE}; the server restarts"


def test_stream_interrupted_by_its_gpu_ends_with_the_error(served, card, brake):
    with served.stream("POST", "/v1/completions", json={**ASKED, "max_tokens": 100, "stream": True}) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: ")
        card.fail()
        brake.let_go()
        rest = "\n".join(lines)
    assert SENTENCE in rest and "device_failed" in rest


def test_driver_reports_a_lost_device_once(served, card):
    assert served.post("/v1/completions", json=ASKED).status_code == 200
    llm, reported = card.opened[0], []
    llm.driver.on_fault = lambda: reported.append(llm.driver.fault)
    card.fail()
    for _ in range(2):
        with pytest.raises(DeviceError, match="illegal"):
            llm.logits([1, 2, 3])
    assert [str(fault) for fault in reported] == [f"{SENTENCE}; start the process anew"]
