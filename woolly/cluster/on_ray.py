"""Replicas as actors of Ray, which finds a machine for each and starts it there. Only this file imports ray.

An actor listens for its front (listening.py), and tokens go straight between the two: Ray places, starts and ends.
"""

from __future__ import annotations

import secrets
import socket
import threading
from typing import Any

from woolly.cluster.listening import Listening
from woolly.cluster.seats import AddressSeat, Seat, Started
from woolly.errors import RequestError
from woolly.machine.extra import how_to_add

__all__ = ["RaySeat", "ray_seats"]

_CONNECT_SECONDS = 5.0
_START_SECONDS = 60.0  # until a machine has room for a replica


class _Actor:
    """What runs on the machine that Ray chose."""

    def __init__(self, secret: str) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        self._listening = Listening(f"{host}:0", secret)
        threading.Thread(target=self._listening.serve, name="woolly-listening", daemon=True).start()

    def address(self) -> str:
        """Returns where its front finds it."""
        return self._listening.address


class _OnRay(Started):
    def __init__(self, started: Started, actor: Any) -> None:
        self.link = started.link
        self._actor = actor

    def kill(self) -> None:
        import ray

        self.link.close()
        ray.kill(self._actor, no_restart=True)


class RaySeat(Seat):
    """A place in a Ray cluster: another actor each time that it is taken."""

    def __init__(self, name: str, threads: int, gpus: float = 0) -> None:
        """`gpus` is the share of one GPU that Ray keeps for the replica; it sees no others."""
        super().__init__(name, threads)
        self.gpus = gpus

    def start(self) -> Started:
        """Starts an actor and connects to it."""
        import ray

        secret = secrets.token_hex(32)
        needs = {"num_cpus": self.threads, "num_gpus": self.gpus}
        actor = ray.remote(_Actor).options(**needs, scheduling_strategy="SPREAD", max_restarts=0).remote(secret)
        try:
            address = ray.get(actor.address.remote(), timeout=_START_SECONDS)
            return _OnRay(AddressSeat(address, secret).start(), actor)
        except Exception as error:
            ray.kill(actor, no_restart=True)
            raise RequestError(f"Ray started no replica: {type(error).__name__}: {error}") from None


def ray_seats(address: str, n: int, threads: int | None, may_use_gpus: bool = False) -> list[Seat]:
    """Returns seats for n actors of the Ray cluster at an address, or of the one that `ray start` began here (auto).

    With `may_use_gpus` all of them get GPUs if the cluster has any: those of GPUs and CPUs have other bits.
    RequestError without the extra `ray`, or if there is no such cluster.
    """
    try:
        import ray
    except ImportError:
        raise RequestError(f"--ray needs the package ray: {how_to_add('ray')}", field="ray", names=()) from None
    if not ray.is_initialized():
        try:
            if address != "auto":  # Ray itself tries for minutes, and then ends the process
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise RequestError(f"there is no Ray cluster at {address}: {error}", field="ray", names=()) from None
    gpus = _gpu_share(n) if may_use_gpus else 0
    return [RaySeat(f"ray-{i}", threads or _share(n, gpus > 0), gpus) for i in range(n)]


def _share(n: int, on_gpus: bool) -> int:
    """Returns the cores of each of n replicas: all cores in equal parts, at most those of the smallest machine.

    Replicas `on_gpus` share the cores of machines that have some.
    """
    machines = _machines()
    cores = [one.get("CPU", 0) for one in machines if not on_gpus or one.get("GPU", 0)]
    return max(1, min(sum(cores) // max(1, n), min((one for one in cores if one), default=1)))


def _gpu_share(n: int) -> float:
    """Returns the part of a GPU that each of n replicas gets: one, unless there are fewer GPUs than replicas."""
    n_gpus = sum(one.get("GPU", 0) for one in _machines())
    return 1 / -(-n // n_gpus) if n_gpus and n else 0


def _machines() -> list[dict[str, int]]:
    """Returns the CPUs and GPUs of each machine of the cluster."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{kind: int(node.get(kind, 0)) for kind in ("CPU", "GPU")} for node in nodes]
