"""Replicas that Ray starts, with a stand-in for Ray: one that does not start, or is not what was started, is ended.

tests/cluster/ray_replicas.py has those of a real cluster.
"""

import socket
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from woolly.cluster.listening import Listening
from woolly.cluster.on_ray import RaySeat, ray_seats
from woolly.errors import RequestError


class Ray:
    """As much of Ray as a seat uses. `address` makes what an actor says of itself out of its secret."""

    def __init__(self, address):
        self.address = address
        self.killed = []

    def remote(self, _):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._start))

    def _start(self, secret):
        return SimpleNamespace(address=SimpleNamespace(remote=lambda: secret))

    def get(self, secret, timeout):
        assert timeout > 0
        return self.address(secret)

    def kill(self, actor, no_restart):
        self.killed.append(actor)


@pytest.fixture
def seated(monkeypatch):
    """A seat of a cluster whose actors say what `address` returns."""

    def make(address):
        ray = Ray(address)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return RaySeat("ray-0", 1), ray

    return make


@pytest.fixture
def stranger():
    """The address of a program that is no replica: it says something else to each that connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):  # the server is closed
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 100)

        thread = threading.Thread(target=serve)
        thread.start()
        yield "{}:{}".format(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def raising(error):
    def raise_it(_):
        raise error

    return raise_it


@pytest.mark.parametrize(
    "address",
    [
        raising(TimeoutError("no machine has room")),
        raising(RuntimeError("the actor died")),
        lambda _: None,
        lambda _: 7070,
        lambda _: "",
        lambda _: "nowhere",
        lambda _: "host:70707",
        lambda _: "127.0.0.1:0",
        lambda _: "a" * 300 + ":7070",
        lambda _: "\x00:7070",
    ],
)
def test_an_actor_that_gives_no_address_is_ended(seated, address):
    seat, ray = seated(address)
    with pytest.raises(RequestError, match="Ray started no replica: "):
        seat.start()
    assert len(ray.killed) == 1


def test_what_does_not_know_the_secret_is_no_replica(seated, stranger):
    seat, ray = seated(lambda _: stranger)
    with pytest.raises(RequestError, match=r"Ray started no replica: .* did not show that it has the secret"):
        seat.start()
    assert len(ray.killed) == 1


def test_the_replica_that_was_started_is_joined_and_ended_with_its_actor(seated):
    opened = []

    def listen(secret):
        assert len(secret) == 64
        one = Listening("127.0.0.1:0", secret)
        opened.append((one, threading.Thread(target=one.serve, daemon=True)))
        opened[-1][1].start()
        return one.address

    seat, ray = seated(listen)
    started = seat.start()
    started.kill()
    assert len(ray.killed) == 1
    ((one, thread),) = opened
    one.leave()
    thread.join(60)
    assert not thread.is_alive()


def test_without_the_package_its_name_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match="--ray needs the package ray: "):
        ray_seats("auto", 1, 1)
