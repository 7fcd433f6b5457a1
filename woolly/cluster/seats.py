"""Seats: where replicas run, and how one is started there."""

from __future__ import annotations

import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from woolly.errors import RequestError
from woolly.wire import Connection, Link

_CONNECT_SECONDS = 10.0
_END_SECONDS = 5.0


class Started(ABC):
    """A replica that was started: the link to it, and how it is ended."""

    link: Link

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once, and waits a little until it is gone; nothing happens if it is."""


class Seat(ABC):
    """A place for one replica."""

    def __init__(
        self, name: str, threads: int | None = None, cpus: Sequence[int] = (), device: str | None = None
    ) -> None:
        """`threads`, `cpus` and `device` are what the replica computes with; none: as the model's options say."""
        self.name = name
        self.threads = threads
        self.cpus = tuple(cpus)
        self.device = device

    @property
    def can_update(self) -> bool:
        """Whether a second replica may start here before the first one ends."""
        return True

    @abstractmethod
    def start(self) -> Started:
        """Starts a replica and returns when it can be spoken to. RequestError or OSError if it cannot be."""


class _Process(Started):
    def __init__(self, link: Link, process: subprocess.Popen[bytes]) -> None:
        self.link = link
        self._process = process

    def kill(self) -> None:
        self.link.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a read from a dead network disk ends only when the disk replies
            self._process.wait(_END_SECONDS)


class ProcessSeat(Seat):
    """A process of this machine, at the other end of a pair of sockets: there is no port that others could reach."""

    def start(self) -> Started:
        """Starts the process."""
        if sys.platform == "win32":
            raise RequestError(
                "replicas of one machine need Linux or macOS; start servers one by one", field="replicas"
            )
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "woolly.cluster.replica", str(theirs.fileno())]
        try:
            # A session of its own: Ctrl-C in a terminal reaches the front alone, which drains.
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Process(Link(Connection(ours, None, is_client=True)), process)


class _Joined(Started):
    def __init__(self, link: Link) -> None:
        self.link = link

    def kill(self) -> None:
        self.link.close()


class AddressSeat(Seat):
    """A replica of another machine, which listens there (`woolly cluster replica`)."""

    def __init__(self, address: str, secret: str) -> None:
        super().__init__(address)
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise RequestError(f"join has {address!r}; HOST:PORT was expected", field="join")
        self._address = host.strip("[]"), int(port)
        self._secret = secret

    @property
    def can_update(self) -> bool:
        """It is updated where it runs: a front cannot start another program there."""
        return False

    def start(self) -> Started:
        """Connects, and shows that this front has the secret."""
        connection = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
        try:
            return _Joined(Link(Connection(connection, self._secret.encode(), is_client=True)))
        except ConnectionError as error:
            raise RequestError(f"the other side did not show that it has the secret ({error})") from None


def local_seats(
    n: int, threads: int | None, nodes: Sequence[Sequence[int]] = (), devices: Sequence[str] = ()
) -> list[Seat]:
    """Returns seats for n processes of this machine; `nodes` are the CPUs of its NUMA nodes, to pin each to one.

    They take the `devices` in turn.
    """
    from woolly.machine.cores import default_threads

    seats: list[Seat] = []
    for i in range(n):
        cpus = tuple(nodes[i % len(nodes)]) if nodes else ()
        n_sharing = sum(1 for j in range(n) if j % len(nodes) == i % len(nodes)) if nodes else n
        n_cores = min(len(cpus), default_threads()) if cpus else default_threads()
        device = devices[i % len(devices)] if devices else None
        seats.append(ProcessSeat(str(i), threads or max(1, n_cores // n_sharing), cpus, device))
    return seats
