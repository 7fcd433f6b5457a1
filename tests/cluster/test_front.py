"""`woolly serve --replicas`: one server to its clients, in every dialect, whatever becomes of the replicas."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import httpx
import pytest

from tests.serving.conftest import serving
from woolly import LLM
from woolly.cluster import front as cluster_serve
from woolly.cluster.replica_state import difference
from woolly.errors import RequestError
from woolly.llm.bit_identity import Identity
from woolly.serving import Settings

CHAT = {
    "messages": [{"role": "user", "content": "hello"}],
    "seed": 3,
    "max_tokens": 80,
    "temperature": 1.0,
    "ignore_eos": True,
}


def ask(client, n_before=0, then=None, **more):
    """The text of a streamed chat; after some events, `then` is called."""
    text = ""
    with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True, **more}) as reply:
        assert reply.status_code == 200
        for n, line in enumerate(reply.iter_lines()):
            if n == n_before and then is not None:
                then()
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return text


def replicas(client):
    return client.get("/health").json()["replicas"]


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.fixture(scope="module")
def whole(tiny_model):
    with LLM(tiny_model, ctx=512, threads=1) as llm:
        options = {name: value for name, value in CHAT.items() if name != "messages"}
        return llm.chat("hello", **options).text


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="replicas of one machine need POSIX")
def test_one_server_of_two_processes(tiny_model, tmp_path, whole):
    flags = ("--replicas", "2", "-t", "1", "--grace", "20", "--cluster-secret", "s" * 32)
    with serving(tiny_model, tmp_path, *flags, ctx=512) as server, server.client() as client:
        assert "--cluster-secret is visible to other users" in server.log.read_text()
        pids = {one["pid"] for one in replicas(client)}
        assert len(pids) == 2 and ask(client) == whole
        reply = client.post("/v1/messages", json={**CHAT, "max_tokens": 5, "model": "tiny"}).json()
        assert reply["usage"]["output_tokens"] == 5
        # Both are killed in the middle of an answer, which goes on with a successor.
        assert ask(client, 20, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids]) == whole
        until(lambda: not pids & {one.get("pid") for one in replicas(client)})
        until(lambda: {one["state"] for one in replicas(client)} == {"ready"})
        # All are replaced while clients read.
        before = {one["pid"] for one in replicas(client)}
        texts, is_over = [], threading.Event()

        def read():
            with server.client() as own:
                while not is_over.is_set():
                    texts.append(ask(own))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        server.process.send_signal(signal.SIGUSR1)
        try:
            until(lambda: "update ended" in server.log.read_text())
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        after = {one["pid"] for one in replicas(client)}
        assert set(texts) == {whole} and len(after) == 2 and not before & after
        metrics = client.get("/metrics").text
        assert 'woolly_replica_ready{model="tiny",replica="1"} 1.0' in metrics
        assert 'woolly_replicas_lost_total{model="tiny"} 2.0' in metrics
    until(lambda: not any(map(is_alive, after)))
    assert server.process.returncode == 0
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/health")


def test_settings_incompatible_with_a_cluster(tmp_path):
    short = tmp_path / "short"
    short.write_text("short\n")
    short.chmod(0o600)
    for settings, words in (
        ({"replicas": 0}, "at least 1"),
        ({"join": ("10.0.0.1:7000",)}, "cluster_secret"),
        ({"cluster_secret": "short"}, "32 characters"),
        ({"cluster_secret_file": short}, "cluster_secret_file is short"),
        ({"cluster_secret_file": short, "cluster_secret": "s" * 32}, "cannot be combined"),
        ({"cluster_secret_file": tmp_path / "none"}, "cannot be read"),
        ({"stages": ("10.0.0.1:7000",), "model": "m", "ray": "auto"}, "remove replicas, join and ray"),
        ({"replicas": 2, "slot_save_path": tmp_path}, "cache_disk"),
        ({"ray": "auto", "pin": True}, "NUMA"),
        ({"ray": "auto", "device": "cuda:1"}, "Ray chooses the GPU of each replica; remove the number"),
        ({"stall": 0.1}, "at least 0.5"),
    ):
        with pytest.raises(RequestError, match=words):
            Settings(**settings)


def test_replicas_take_the_gpus_of_a_machine_in_turn(monkeypatch):
    monkeypatch.setattr(cluster_serve, "name_gpus", lambda backend: ["cuda:0", "cuda:1"])
    launchers = cluster_serve.make_launchers(Settings(replicas=3, threads=1))
    assert [launcher.device for launcher in launchers] == ["cuda:0", "cuda:1", "cuda:0"]
    for given in ({"backend": "cpu"}, {"device": "cuda:1"}, {"gpu_layers": "0"}):
        settings = Settings(replicas=2, **given)
        assert [launcher.device for launcher in cluster_serve.make_launchers(settings)] == [
            None,
            None,
        ]  # as the options say
    monkeypatch.setattr(cluster_serve, "name_gpus", lambda backend: ["cuda:0"])
    assert [launcher.device for launcher in cluster_serve.make_launchers(Settings(replicas=2))] == [None, None]


def test_error_says_how_to_give_a_replica_the_same_bits():
    known = Identity(1, "m", "cuda+cpu sm_90+avx2", "f16", "a")
    advice = "; set the same number of GPU layers for all replicas (--gpu-layers N)"
    for other in (replace(known, probe="b"), replace(known, backend="cpu")):
        assert difference(known, other).endswith(advice)
    assert "a different backend (cpu, others have cuda+cpu sm_90+avx2)" in difference(
        known, replace(known, backend="cpu")
    )
    for other in (replace(known, model="n"), replace(known, kv_type="f32")):
        assert advice not in difference(known, other)
    known = replace(known, backend="cpu")
    assert "different CPU, kernels" in difference(known, replace(known, probe="b"))
    assert advice not in difference(known, replace(known, probe="b"))
