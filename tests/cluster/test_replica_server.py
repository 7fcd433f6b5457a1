"""Replicas that listen for a front, and the check of a cluster."""

import errno
import json
import os
import socket
import threading
import time

import pytest
from click.testing import CliRunner

from tests.cli.terminal import woolly
from woolly import LLM, SamplingParams
from woolly.cli.app import app
from woolly.cli.parse.usage_errors import UsageError
from woolly.cluster.check import check_cluster
from woolly.cluster.fleet_llm import FleetLLM
from woolly.cluster.launchers import AddressLauncher
from woolly.cluster.replica_server import ReplicaServer
from woolly.errors import DeviceError, ModelError, RequestError
from woolly.runtime.cpu import CpuProgram
from woolly.serving import Settings
from woolly.serving.settings.options import ModelOptions
from woolly.wire import Connection, Link, WireMessage

SECRET = "a secret of thirty-two characters"
PARAMS = SamplingParams(seed=3, temperature=1.0, max_tokens=60, ignore_eos=True)


@pytest.fixture
def replica_server():
    opened = []

    def make(secret=SECRET):
        one = ReplicaServer("127.0.0.1:0", secret)
        thread = threading.Thread(target=one.serve, daemon=True)
        thread.start()
        opened.append((one, thread))
        return one

    yield make
    for one, thread in opened:
        one.leave()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def ending():
    """A listening replica, its thread, and the faults that end it."""
    one, raised = ReplicaServer("127.0.0.1:0", SECRET), []

    def serve():
        try:
            one.serve()
        except DeviceError as error:
            raised.append(str(error))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield one, thread, raised
    one.leave()
    thread.join(60)


def fail(*given):
    raise DeviceError("the GPU failed", code="lost", remedy="start the process anew")


def test_replica_exits_if_its_gpu_fails_while_opening_the_model(ending, tiny_model, monkeypatch):
    one, thread, raised = ending
    monkeypatch.setattr(LLM, "identity", fail)  # the probe is the first run
    with pytest.raises(ModelError, match="no replica is ready: the GPU failed"):
        FleetLLM(tiny_model, ModelOptions(ctx=512, threads=1), [AddressLauncher(one.address, SECRET)], stall=60.0)
    thread.join(60)
    assert not thread.is_alive() and raised == ["the GPU failed; start the process anew"]


def test_replica_exits_with_the_error_of_its_failed_gpu(ending, tiny_model, monkeypatch):
    one, thread, raised = ending
    with FleetLLM(
        tiny_model, ModelOptions(ctx=512, threads=1), [AddressLauncher(one.address, SECRET)], stall=60.0
    ) as llm:
        monkeypatch.setattr(CpuProgram, "run", fail)
        current_account = threading.Thread(target=lambda: list(llm.generate("hello", PARAMS, stream=True)), daemon=True)
        current_account.start()
        thread.join(60)
        assert not thread.is_alive() and raised == ["the GPU failed; start the process anew"]
    current_account.join(60)  # closing ended the answer, for which there is no replica
    assert not current_account.is_alive()


def test_leaving_replica_hands_its_answers_to_others(replica_server, tiny_model):
    first, second = replica_server(), replica_server()
    launchers = [AddressLauncher(one.address, SECRET) for one in (first, second)]
    with LLM(tiny_model, ctx=512, threads=1) as alone:
        whole = alone.generate("hello", PARAMS)
    options = ModelOptions(ctx=512, threads=1)
    with FleetLLM(tiny_model, options, launchers, stall=60.0, grace=0.0) as llm:
        stream = llm.generate("hello", PARAMS, stream=True)
        next(stream)
        first.leave()
        for _ in stream:
            pass
        assert stream.completion == whole
        end = time.monotonic() + 60
        while llm.fleet.n_ready != 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert llm.generate("hello", PARAMS) == whole


def test_front_needs_the_secret(replica_server, tiny_model):
    launcher = AddressLauncher(replica_server(SECRET + "!").address, SECRET)
    with pytest.raises(ModelError, match="secret"):
        FleetLLM(tiny_model, ModelOptions(ctx=512, threads=1), [launcher])


def test_replica_server_accepts_again_after_an_error(replica_server, tiny_model, monkeypatch, caplog):
    plain, errors = socket.socket.accept, [errno.EMFILE, errno.ECONNABORTED]

    def accept(listener):
        if errors:
            raise OSError(errors[0], os.strerror(errors.pop(0)))
        return plain(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    launcher = AddressLauncher(replica_server().address, SECRET)
    with FleetLLM(tiny_model, ModelOptions(ctx=512, threads=1), [launcher], stall=60.0) as llm:
        assert llm.fleet.n_ready == 1
    assert not errors
    assert [record.msg for record in caplog.records if "failed to accept" in record.msg] == [
        f"failed to accept a connection ({os.strerror(errno.EMFILE)}); waiting for others"
    ]


def connected(one):
    """A connection of one who knows the secret."""
    host, _, port = one.address.rpartition(":")
    return Connection(socket.create_connection((host, int(port))), SECRET.encode(), is_client=True)


def test_silent_connections_do_not_block_a_front(replica_server, tiny_model):
    one = replica_server()
    host, _, port = one.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(200)]
    link = Link(connected(one))
    link.send(WireMessage("ping"))
    assert next(iter(link)).kind == "pong"
    link.close()
    for sock in silent:
        sock.close()


@pytest.mark.parametrize(
    "said",
    [
        WireMessage("dance"),
        WireMessage("add"),
        WireMessage("add", {"id": [], "params": 5}),
        WireMessage("cancel", {"ids": 5}),
        WireMessage("open", {"stall": "x"}),
        WireMessage("read", {"texts": None}),
        WireMessage("__init__"),
        b'{"op": "close"}\n\n',
        b"[]\n" * 100,
    ],
    ids=lambda said: repr(said)[:40],
)
def test_invalid_message_closes_the_connection_but_not_the_replica(replica_server, said):
    one = replica_server()
    front = connected(one)
    if isinstance(said, bytes):
        front._socket.sendall(said)
    else:
        front.send(said)
    with pytest.raises(ConnectionError):
        while True:
            front.receive(lambda silence: None)
    front.close()
    link = Link(connected(one))  # the next front
    link.send(WireMessage("ping"))
    assert next(iter(link)).kind == "pong"
    link.close()


def test_replica_can_leave_while_its_model_opens(replica_server, tiny_model, monkeypatch):
    is_opening, may_go_on = threading.Event(), threading.Event()

    class Slow(LLM):
        def __init__(self, *given, **options):
            is_opening.set()
            assert may_go_on.wait(60)
            super().__init__(*given, **options)

    monkeypatch.setattr("woolly.cluster.replica.LLM", Slow)
    one = replica_server()
    link = Link(connected(one))
    link.send(WireMessage("open", {"model": str(tiny_model), "options": {"ctx": 512, "threads": 1}}))
    assert is_opening.wait(60)
    one.leave()
    assert list(link) == []
    may_go_on.set()


def test_addresses_are_validated():
    with pytest.raises(RequestError, match="HOST:PORT"):
        AddressLauncher("nowhere", SECRET)
    with pytest.raises(RequestError, match="HOST:PORT"):
        ReplicaServer("7070", SECRET)


def test_check_finds_problems_that_would_stop_a_cluster(replica_server, tiny_model):
    free = ReplicaServer("127.0.0.1:0", SECRET)  # a port that is taken
    port = int(free.address.rpartition(":")[2])
    join = (replica_server().address,)
    settings = {"model": str(tiny_model), "replicas": 0, "join": join, "cluster_secret": SECRET, "ctx_size": 512}
    found = check_cluster(Settings(**settings, port=0))
    assert not found.faults and found.identity is not None and found.replicas[0]["state"] == "ready"
    found = check_cluster(Settings(**settings, port=port))
    assert len(found.faults) == 1 and f"port {port}" in found.faults[0]
    free.leave()


def test_replica_command(replica_server, tiny_model, monkeypatch, tmp_path):
    monkeypatch.setenv("WOOLLY_CLUSTER_SECRET", SECRET)
    monkeypatch.setenv("WOOLLY_PORT", "0")
    monkeypatch.setenv("WOOLLY_CTX_SIZE", "512")
    flags = ["-m", str(tiny_model), "--replicas", "0", "--join", replica_server().address]
    assert json.loads(woolly("cluster", "check", *flags, "--json"))["faults"] == []
    assert "identity w" in woolly("cluster", "check", *flags)
    shown = CliRunner().invoke(app, ["cluster", "check", *flags[:-1], "127.0.0.1:1"])
    assert shown.exit_code == 1 and "fault: no replica is ready" in shown.output
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    monkeypatch.delenv("WOOLLY_CLUSTER_SECRET")
    assert "identity w" in woolly("cluster", "check", *flags, "--cluster-secret-file", str(secret))
    with pytest.raises(UsageError, match="check, replica"):
        woolly("cluster", "dance")
    with pytest.raises(RequestError, match="WOOLLY_CLUSTER_SECRET"):
        woolly("cluster", "replica")
