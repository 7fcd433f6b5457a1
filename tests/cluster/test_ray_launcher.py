"""Replicas that Ray starts, with a stand-in for Ray: one that does not start, or is not what was started, is ended.

tests/cluster/ray_replicas.py has those of a real cluster.
"""

import shutil
import socket
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from woolly.cluster.front import make_launchers, prepare
from woolly.cluster.ray_launcher import RayLauncher, ray_launchers
from woolly.cluster.replica_server import ReplicaServer
from woolly.errors import RequestError
from woolly.serving import Settings, create_app
from woolly.serving.accounts.keys_file import add_key
from woolly.serving.accounts.usage_ledger import read_usage


class Ray:
    """The part of Ray that a launcher uses. `address` makes what an actor says of itself out of its secret."""

    def __init__(self, address):
        self.address = address
        self.killed = []
        self.needs = []
        self.machines = [{"CPU": 4.0}]

    def is_initialized(self):
        return True

    def nodes(self):
        gone = {"Alive": False, "Resources": {"GPU": 9.0}}
        return [gone, *({"Alive": True, "Resources": one} for one in self.machines)]

    def remote(self, _):
        return SimpleNamespace(options=self._with)

    def _with(self, *, num_cpus, num_gpus, **_):
        self.needs.append((num_cpus, num_gpus))
        return SimpleNamespace(remote=self._start)

    def _start(self, secret):
        return SimpleNamespace(address=SimpleNamespace(remote=lambda: secret))

    def get(self, secret, timeout):
        assert timeout > 0
        return self.address(secret)

    def kill(self, actor, no_restart):
        self.killed.append(actor)


@pytest.fixture
def ray_launcher(monkeypatch):
    """A launcher on a cluster whose actors report what `address` returns."""

    def make(address):
        ray = Ray(address)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return RayLauncher("ray-0", 1), ray

    return make


@pytest.fixture
def stranger():
    """The address of a program that is not a replica: it says something else to each that connects."""
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
def test_actor_without_an_address_is_killed(ray_launcher, address):
    launcher, ray = ray_launcher(address)
    with pytest.raises(RequestError, match="Ray failed to start a replica: "):
        launcher.start()
    assert len(ray.killed) == 1


def test_actor_without_the_secret_is_killed(ray_launcher, stranger):
    launcher, ray = ray_launcher(lambda _: stranger)
    with pytest.raises(RequestError, match=r"Ray failed to start a replica: .* failed to authenticate"):
        launcher.start()
    assert len(ray.killed) == 1


def test_ray_replica_ends_with_its_actor(ray_launcher):
    opened = []

    def listen(secret):
        assert len(secret) == 64
        one = ReplicaServer("127.0.0.1:0", secret)
        opened.append((one, threading.Thread(target=one.serve, daemon=True)))
        opened[-1][1].start()
        return one.address

    launcher, ray = ray_launcher(listen)
    handle = launcher.start()
    handle.kill()
    assert len(ray.killed) == 1
    ((one, thread),) = opened
    one.leave()
    thread.join(60)
    assert not thread.is_alive()


def test_replicas_share_the_gpus_of_a_cluster_or_its_cores(ray_launcher):
    _, ray = ray_launcher(raising(TimeoutError("no machine has room")))
    ray.machines = [{"CPU": 16.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 64.0}]
    for n, may_use_gpus, needs in ((3, True, (8, 1)), (4, True, (4, 0.5)), (7, True, (2, 0.3333)), (4, False, (8, 0))):
        ray.needs.clear()
        for launcher in ray_launchers("auto", n, None, may_use_gpus):
            with pytest.raises(RequestError):
                launcher.start()
        assert ray.needs == [needs] * n
    del ray.machines[:2]
    assert [(launcher.threads, launcher.gpus) for launcher in ray_launchers("auto", 2, 3, may_use_gpus=True)] == [
        (3, 0)
    ] * 2
    for given, may in (
        ({}, True),
        ({"device": "cpu"}, False),
        ({"backend": "cpu"}, False),
        ({"device": "cuda"}, True),
        ({"backend": "cuda", "gpu_layers": 4}, True),
        ({"gpu_layers": "0"}, False),
        ({"device": "vulkan"}, False),
        ({"backend": "vulkan"}, False),
    ):
        ray.machines = [{"CPU": 2.0, "GPU": 1.0}]
        (launcher,) = make_launchers(Settings(model="m", ray="auto", replicas=1, **given))
        assert bool(launcher.gpus) is may


def has_room(machines, launchers):
    """True if all launchers fit, first fit per machine, counted like Ray in parts of 10,000."""
    free = [(10_000 * one["CPU"], [10_000] * one.get("GPU", 0)) for one in machines]
    for launcher in launchers:
        cores, part = 10_000 * launcher.threads, int(launcher.gpus * 10_000 + 0.5)
        for i, (left, gpus) in enumerate(free):
            gpu = next((j for j, one in enumerate(gpus) if one >= part), None)
            if left >= cores and (gpu is not None or not part):
                free[i] = left - cores, [one - part * (j == gpu) for j, one in enumerate(gpus)]
                break
        else:
            return False
    return True


@pytest.mark.parametrize(
    "machines",
    [
        [{"CPU": 64, "GPU": 1}],
        [{"CPU": 8, "GPU": 1}, {"CPU": 96, "GPU": 2}],
        [{"CPU": 5, "GPU": 1}, {"CPU": 200, "GPU": 3}, {"CPU": 400}],
        [{"CPU": 5}, {"CPU": 3}, {"CPU": 17}],
    ],
)
def test_every_replica_gets_a_machine(ray_launcher, machines):
    _, ray = ray_launcher(None)
    n_most = 20 if any("GPU" in one for one in machines) else 24  # each has at least one core
    for ray.machines in (machines, machines[::-1]):
        for n in range(1, n_most + 1):
            for may_use_gpus in (True, False):
                assert has_room(ray.machines, ray_launchers("auto", n, None, may_use_gpus)), (n, may_use_gpus)


@pytest.fixture
def actors(ray_launcher):
    """Ray whose actors listen in threads of this process."""
    opened = []

    def listen(secret):
        one = ReplicaServer("127.0.0.1:0", secret)
        opened.append((one, threading.Thread(target=one.serve, daemon=True)))
        opened[-1][1].start()
        return one.address

    yield ray_launcher(listen)[1]
    for one, thread in opened:
        one.leave()
        thread.join(60)
        assert not thread.is_alive()


def test_presets_keys_and_usage_belong_to_the_front(actors, tiny_model, tmp_path):
    models, keys = tmp_path / "models", tmp_path / "keys.toml"
    models.mkdir()
    shutil.copy(tiny_model, models / "tiny.gguf")
    (models / "presets.toml").write_text('[fast]\nfrom = "tiny"\ntemperature = 0.0\n')
    limits = {"anna": {"requests_per_day": 2}, "ole": {}}
    heads = {name: {"Authorization": f"Bearer {add_key(keys, name, limits=own)}"} for name, own in limits.items()}
    settings = Settings(
        models_dir=models,
        sessions_file=tmp_path / "sessions.db",
        usage_file=tmp_path / "usage.db",
        keys_file=keys,
        ray="auto",
        replicas=1,
        threads=1,
        ctx_size=64,
        strict_models=True,
    )
    app = create_app(settings)
    prepare(app, settings)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    with TestClient(app) as client:

        def ask(name, model):
            return client.post("/v1/chat/completions", headers=heads[name], json={**body, "model": model})

        names = {one["id"] for one in client.get("/v1/models", headers=heads["ole"]).json()["data"]}
        assert names == {"tiny", "fast"}
        replies = [ask("anna", "tiny"), ask("anna", "fast"), ask("anna", "tiny"), ask("ole", "fast")]
        assert [reply.status_code for reply in replies] == [200, 200, 429, 200]
        assert replies[0].headers["x-ratelimit-limit-requests"] == "2"
        assert len(actors.needs) == 1  # two names, one load
    used = {(row["key"], row["model"]): row["requests"] for row in read_usage(tmp_path / "usage.db", ("key", "model"))}
    assert used == {("anna", "tiny"): 2, ("ole", "tiny"): 1}  # by the model that both names have


def test_missing_ray_package_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match="--ray needs the package ray: "):
        ray_launchers("auto", 1, 1)
