"""Replicas as Ray actors. Only this file imports ray.

An actor listens for its front (replica_server.py) and sends tokens to it directly; Ray only manages processes.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from woolly.cluster.launchers import AddressLauncher, ReplicaHandle, ReplicaLauncher
from woolly.cluster.replica_server import ReplicaServer
from woolly.errors import RequestError
from woolly.machine.optional_packages import install_command

_CONNECT_SECONDS = 5.0
_PARTS = 10_000  # resolution of Ray's GPU shares; if rounded up, one replica would not fit
_START_SECONDS = 60.0  # seconds to wait until a machine has room for a replica


class _Actor:
    """Process on the machine chosen by Ray."""

    def __init__(self, secret: str) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        self._server = ReplicaServer(f"{host}:0", secret)
        threading.Thread(target=self._server.serve, name="woolly-replica-server", daemon=True).start()

    def address(self) -> str:
        """Return the address for its front."""
        return self._server.address


class _RayHandle(ReplicaHandle):
    def __init__(self, handle: ReplicaHandle, actor: Any) -> None:
        self.link = handle.link
        self._actor = actor

    def kill(self) -> None:
        import ray

        self.link.close()
        ray.kill(self._actor, no_restart=True)


class RayLauncher(ReplicaLauncher):
    """Launches a Ray actor. Each start creates a new actor."""

    def __init__(self, name: str, threads: int, gpus: float = 0) -> None:
        """`gpus` is the share of a GPU that Ray reserves for the replica, which sees no other GPU."""
        super().__init__(name, threads)
        self.gpus = gpus

    def start(self) -> ReplicaHandle:
        """Start an actor and connect to it."""
        import ray

        secret = secrets.token_hex(32)
        needs = {"num_cpus": self.threads, "num_gpus": self.gpus}
        actor = ray.remote(_Actor).options(**needs, scheduling_strategy="SPREAD", max_restarts=0).remote(secret)
        try:
            address = ray.get(actor.address.remote(), timeout=_START_SECONDS)
            return _RayHandle(AddressLauncher(address, secret).start(), actor)
        except Exception as error:
            ray.kill(actor, no_restart=True)
            raise RequestError(f"Ray failed to start a replica: {type(error).__name__}: {error}") from None


def ray_launchers(address: str, n: int, threads: int | None, may_use_gpus: bool = False) -> list[ReplicaLauncher]:
    """Return launchers of n actors of the Ray cluster at an address ("auto": the local cluster).

    With `may_use_gpus`, all actors get GPUs if the cluster has any, because GPUs and CPUs give different bits. Raise
    RequestError if `ray` is not installed or the cluster is unreachable.
    """
    try:
        import ray
    except ImportError:
        raise RequestError(f"--ray needs the package ray: {install_command('ray')}", field="ray", names=()) from None
    if not ray.is_initialized():
        try:
            if address != "auto":  # Ray itself retries for minutes, then exits the process
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise RequestError(f"no Ray cluster found at {address}: {error}", field="ray", names=()) from None
    machines = _machines()
    n_each = _n_each(n, machines) if may_use_gpus else 0
    gpus = _PARTS // n_each / _PARTS if n_each else 0
    return [RayLauncher(f"ray-{i}", threads or _share(n, n_each, machines), gpus) for i in range(n)]


def _n_each(n: int, machines: Sequence[Mapping[str, int]]) -> int:
    """Return the replicas per GPU: 1 unless there are fewer GPUs than replicas; 0 without GPUs."""
    n_gpus = sum(one["GPU"] for one in machines)
    return -(-n // n_gpus) if n_gpus else 0


def _share(n: int, n_each: int, machines: Sequence[Mapping[str, int]]) -> int:
    """Return the cores per replica: the cores of a machine divided by its maximum number of replicas.

    With GPUs, a machine has at most `n_each` replicas per GPU. Without GPUs, the share is the largest number of cores
    that gives n shares across all machines, and at least one share on the smallest machine.
    """
    if n_each:
        return max(1, min(one["CPU"] // (one["GPU"] * n_each) for one in machines if one["GPU"]))
    cores = [one["CPU"] for one in machines if one["CPU"]]
    return next((t for t in range(min(cores, default=1), 1, -1) if sum(one // t for one in cores) >= n), 1)


def _machines() -> list[dict[str, int]]:
    """Return the CPUs and GPUs of each machine of the cluster."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{kind: int(node.get(kind, 0)) for kind in ("CPU", "GPU")} for node in nodes]
