"""Launchers of replicas: local processes and remote addresses."""

from __future__ import annotations

import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from woolly.errors import RequestError
from woolly.wire import Connection, Link

_CONNECT_SECONDS = 10.0
_END_SECONDS = 5.0


class ReplicaHandle(ABC):
    """Connection to a running replica."""

    link: Link

    @abstractmethod
    def kill(self) -> None:
        """Stop the replica immediately and wait briefly for its process. Idempotent."""


class ReplicaLauncher(ABC):
    """Starts replicas one at a time, with fixed threads, CPUs and device."""

    def __init__(
        self, name: str, threads: int | None = None, cpus: Sequence[int] = (), device: str | None = None
    ) -> None:
        """`threads`, `cpus` and `device` override the options of the model."""
        self.name = name
        self.threads = threads
        self.cpus = tuple(cpus)
        self.device = device

    @property
    def can_update(self) -> bool:
        """True if a successor can start before the running replica stops."""
        return True

    def opening(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the message that opens the model, with this launcher's threads, CPUs and device."""
        own = {"threads": self.threads, "device": self.device}
        options = fields["options"] | {name: value for name, value in own.items() if value is not None}
        return {**fields, "options": options, "cpus": self.cpus}

    @abstractmethod
    def start(self) -> ReplicaHandle:
        """Start a replica and return when it is connected; raise RequestError or OSError on failure."""


class _ProcessHandle(ReplicaHandle):
    def __init__(self, link: Link, process: subprocess.Popen[bytes]) -> None:
        self.link = link
        self._process = process

    def kill(self) -> None:
        self.link.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a read from an unreachable network disk may never end
            self._process.wait(_END_SECONDS)


class ProcessLauncher(ReplicaLauncher):
    """Launches a local subprocess connected by a socket pair, which needs no open port."""

    def start(self) -> ReplicaHandle:
        """Start the process."""
        if sys.platform == "win32":
            raise RequestError(
                "replicas on one machine need Linux or macOS; start separate servers instead", field="replicas"
            )
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "woolly.cluster.replica", str(theirs.fileno())]
        try:
            # The separate session keeps Ctrl-C in a terminal from the replicas; the front drains them.
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return _ProcessHandle(Link(Connection(ours, None, is_client=True)), process)


class _ConnectionHandle(ReplicaHandle):
    def __init__(self, link: Link) -> None:
        self.link = link

    def kill(self) -> None:
        self.link.close()


class AddressLauncher(ReplicaLauncher):
    """Remote replica that listens at HOST:PORT (`woolly cluster replica`)."""

    def __init__(self, address: str, secret: str) -> None:
        super().__init__(address)
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise RequestError(f"join has {address!r}; expected HOST:PORT", field="join")
        self._address = host.strip("[]"), int(port)
        self._secret = secret

    @property
    def can_update(self) -> bool:
        """False, because a front cannot start programs on another machine."""
        return False

    def start(self) -> ReplicaHandle:
        """Connect and authenticate with the shared secret."""
        connection = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
        try:
            return _ConnectionHandle(Link(Connection(connection, self._secret.encode(), is_client=True)))
        except ConnectionError as error:
            raise RequestError(f"the replica failed to authenticate with the secret ({error})") from None


def local_launchers(
    n: int, threads: int | None, nodes: Sequence[Sequence[int]] = (), devices: Sequence[str] = ()
) -> list[ReplicaLauncher]:
    """Return launchers of n local processes, assigned round-robin to NUMA `nodes` (lists of CPUs) and `devices`."""
    from woolly.machine.cores import default_threads

    launchers: list[ReplicaLauncher] = []
    for i in range(n):
        cpus = tuple(nodes[i % len(nodes)]) if nodes else ()
        n_sharing = sum(1 for j in range(n) if j % len(nodes) == i % len(nodes)) if nodes else n
        n_cores = min(len(cpus), default_threads()) if cpus else default_threads()
        device = devices[i % len(devices)] if devices else None
        launchers.append(ProcessLauncher(str(i), threads or max(1, n_cores // n_sharing), cpus, device))
    return launchers
