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

    def start(self) -> Started:
        """Starts an actor and connects to it."""
        import ray

        secret = secrets.token_hex(32)
        kind = ray.remote(_Actor).options(num_cpus=self.threads, scheduling_strategy="SPREAD", max_restarts=0)
        actor = kind.remote(secret)
        try:
            address = ray.get(actor.address.remote(), timeout=_START_SECONDS)
            return _OnRay(AddressSeat(address, secret).start(), actor)
        except Exception as error:
            ray.kill(actor, no_restart=True)
            raise RequestError(f"Ray started no replica: {type(error).__name__}: {error}") from None


def ray_seats(address: str, n: int, threads: int | None) -> list[Seat]:
    """Returns seats for n actors of the Ray cluster at an address, or of the one that `ray start` began here (auto).

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
    return [RaySeat(f"ray-{i}", threads or _share(n)) for i in range(n)]


def _share(n: int) -> int:
    """Returns the cores of each of n replicas: all cores in equal parts, at most those of the smallest machine."""
    import ray

    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min(sum(cores) // max(1, n), min((one for one in cores if one), default=1)))
