"""Shutdown of a server: in time, with sessions closed and clients notified, even if a thread hangs."""

import contextlib
import signal
import socket
import threading
import time

import httpx
import pytest

from tests.serving import conftest
from tests.serving.conftest import WAIT, serving

BODY = {"prompt": "sheep", "max_tokens": 2}
STUCK = """
import time
from woolly.serving.generation.generator import Generator
Generator._prepare = lambda *_: time.sleep(1200)
from woolly.cli import main
main()
"""


@pytest.fixture
def stuck(request, tiny_model, tmp_path, monkeypatch):
    """A server whose every request stays in a thread, as in a grammar that takes minutes to compile."""
    monkeypatch.setattr(conftest, "_MAIN", STUCK)
    with serving(tiny_model, tmp_path, "--grace", request.param, ctx=64) as server:
        replies = []

        def ask():
            with contextlib.suppress(httpx.TransportError):
                replies.append(httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=WAIT))

        reader = threading.Thread(target=ask)
        reader.start()
        with server.client() as client:
            while not client.get("/api/v1/health/ready").json()["checks"]["queue"]["message"].startswith("1 of"):
                time.sleep(0.02)
        yield server, replies, reader
        reader.join(WAIT)


@pytest.mark.parametrize("stuck", ["0.5"], indirect=True)
def test_unending_thread_delays_shutdown_only_by_seconds(stuck):
    server, replies, reader = stuck
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(WAIT) == 0  # which the thread does not: it sleeps for ten times as long
    reader.join(WAIT)
    (reply,) = replies
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_stopping")
    assert reply.headers["retry-after"]
    log = server.log.read_text()
    assert "threads_at_work=woolly-pool" in log and "clean=False" in log
    # What SQLite keeps beside a file that is open is gone.
    assert not list(server.log.parent.glob("sessions-*.db-wal"))


@pytest.mark.parametrize("stuck", ["1200"], indirect=True)
def test_second_signal_stops_immediately(stuck):
    server, _, _ = stuck
    server.process.send_signal(signal.SIGTERM)
    server.log_with("draining")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(WAIT) == 128 + signal.SIGINT


def test_start_prints_the_page_url_and_sighup_drains_like_sigterm(tiny_model, tmp_path):
    # What runs these tests may itself ignore the signal, as under nohup, and a child would inherit that.
    main = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); from woolly.cli import main; main()"
    with serving(tiny_model, tmp_path, ctx=64, main=main) as server:
        assert f"open {server.url} in your browser" in server.log.read_text()
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(WAIT) == 0
        assert "draining" in server.log.read_text()


def test_server_without_a_page_prints_no_url_and_survives_hangup_under_nohup(tiny_model, tmp_path, monkeypatch):
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from woolly.cli import main; main()"
    monkeypatch.setattr(conftest, "_MAIN", ignoring)
    with serving(tiny_model, tmp_path, "--no-webui", ctx=64) as server, server.client() as client:
        assert "browser" not in server.log.read_text()
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert client.get("/health").status_code == 200


def test_low_file_limit_means_fewer_connections_and_few_log_lines(tiny_model, tmp_path, monkeypatch):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); " + conftest._MAIN
    monkeypatch.setattr(conftest, "_MAIN", limited)
    with serving(tiny_model, tmp_path, ctx=64) as server, contextlib.ExitStack() as held:
        assert "max_connections is lowered to fit the file limit to=32 file_limit=64" in server.log.read_text()
        started = time.monotonic()
        for _ in range(200):
            held.enter_context(socket.create_connection(server.address, WAIT))
        time.sleep(2.5)
        log = server.log.read_text()
        n_seconds = time.monotonic() - started  # and a line for each at most
        assert log.count("could not be accepted") <= n_seconds + 1 and "Traceback" not in log
        held.close()
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{server.url}/health", timeout=10).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("the server does not recover")
