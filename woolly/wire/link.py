"""Link: a connection with a non-blocking sender."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Sequence

from woolly.wire.connection import Connection, LostConnection
from woolly.wire.message import WireMessage

_Parts = Sequence[bytes | memoryview]


class Link:
    """One end of a connection. A writer thread sends messages, so `send` never blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[_Parts | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="woolly-link", daemon=True)
        self._thread.start()

    def send(self, message: WireMessage) -> None:
        """Queue a message. Has no effect if the peer is gone, which the reader detects."""
        self._queue.put(message.parts())  # serialize now, because a request's lists grow meanwhile

    def end_without(self, seconds: float) -> None:
        """Close the connection like `Connection.end_without`."""
        self._connection.end_without(seconds)

    def __iter__(self) -> Iterator[WireMessage]:
        """Yield messages as they arrive, until the peer is gone."""
        while True:
            try:
                message = self._connection.receive(_wait)
            except ConnectionError:
                return
            yield message

    def finish(self) -> None:
        """Write queued messages, then close."""
        self._queue.put(None)
        self._thread.join(2.0)
        self.close()

    def close(self) -> None:
        """Close immediately, and wake a waiting reader and writer."""
        self._queue.put(None)
        self._connection.close()

    def _write(self) -> None:
        parts = self._queue.get()
        while parts is not None:
            waiting = [parts]
            while not self._queue.empty() and (parts := self._queue.get()) is not None:
                waiting.append(parts)
            try:
                # Without a timeout: the peer monitor drops a stalled peer.
                self._connection.send_all(waiting, math.inf)
            except LostConnection:
                self._connection.close()  # wakes the reader on this side
                return
            if parts is not None:
                parts = self._queue.get()


def _wait(_: float) -> None:
    """Do nothing, so that the connection continues to wait."""
