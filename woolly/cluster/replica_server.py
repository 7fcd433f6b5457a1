"""ReplicaServer: a replica that listens for a front on another machine."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading

from woolly.cluster.replica import Replica
from woolly.errors import RequestError
from woolly.wire import Connection, Link, greeted, hang_up

log = logging.getLogger("woolly.cluster")


class ReplicaServer:
    """Serves one front at a time and loads the model for each. A second front waits until the first disconnects."""

    def __init__(self, address: str, secret: str) -> None:
        """Listen at HOST:PORT; port 0 selects any free port. Raise RequestError on failure."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise RequestError(f"listen is {address!r}; expected HOST:PORT", field="listen")
        self._secret = secret
        self._replica: Replica | None = None
        self._is_leaving = False
        self._lock = threading.RLock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((host.strip("[]"), int(port)))
            self._listener.listen(4)
        except OSError as error:
            self._listener.close()
            raise RequestError(f"cannot listen at {address} ({error.strerror or error})", field="listen") from None

    @property
    def address(self) -> str:
        """Listening address."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def drain_on_signals(self) -> None:
        """Make SIGTERM and Ctrl-C ask the front to move running requests; a second signal exits immediately."""

        def handle(number: int, frame: object) -> None:
            signal.signal(number, signal.SIG_DFL)
            self.leave()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    def serve(self) -> None:
        """Serve until asked to leave."""
        secret = self._secret.encode()
        try:
            for connection, client in greeted(self._listener, secret, self._is_over, log.warning, _refused):
                self._serve(connection, client)
        finally:
            self._is_leaving = True
            hang_up(self._listener)

    def leave(self) -> None:
        """Ask the front for a successor and return; `serve` ends when all requests have moved."""
        with self._lock:
            self._is_leaving = True
            if self._replica is not None:
                self._replica.leave()
            hang_up(self._listener)

    def _is_over(self) -> bool:
        return self._is_leaving

    def _serve(self, connection: Connection, client: str) -> None:
        with self._lock:
            if self._is_leaving:
                connection.close()
                return
            self._replica = replica = Replica(Link(connection))
        log.info("front", extra={"client": client})
        replica.serve()
        replica.wait()  # two models may not fit in memory
        with self._lock:
            self._replica = None
        log.info("front gone", extra={"client": client})
        if replica.fault is not None:  # the front reconnects to the process that replaces this one
            raise replica.fault


def _refused(client: str, reason: str) -> None:
    log.warning("front rejected", extra={"client": client, "reason": reason})
