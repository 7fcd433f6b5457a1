"""The Link: a connection whose sender never waits."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Sequence

from woolly.wire.connection import Connection, LostConnection
from woolly.wire.message import WireMessage

_Parts = Sequence[bytes | memoryview]


class Link:
    """Both ends of a connection are links. `send` never blocks: a thread of the link's own writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[_Parts | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="woolly-link", daemon=True)
        self._thread.start()

    def send(self, message: WireMessage) -> None:
        """Queues a message; nothing happens if the other side is gone, which the reader notices."""
        self._queue.put(message.parts())  # as it is at this moment: a request's lists grow meanwhile

    def end_without(self, seconds: float) -> None:
        """End the connection as `Connection.end_without` does."""
        self._connection.end_without(seconds)

    def __iter__(self) -> Iterator[WireMessage]:
        """Yields messages as they come, until the other side is gone."""
        while True:
            try:
                message = self._connection.receive(_wait)
            except ConnectionError:
                return
            yield message

    def finish(self) -> None:
        """Writes what is queued, and closes."""
        self._queue.put(None)
        self._thread.join(2.0)
        self.close()

    def close(self) -> None:
        """Closes at once; a reader and a writer that wait wake up."""
        self._queue.put(None)
        self._connection.close()

    def _write(self) -> None:
        parts = self._queue.get()
        while parts is not None:
            waiting = [parts]
            while not self._queue.empty() and (parts := self._queue.get()) is not None:
                waiting.append(parts)
            try:
                # Without a limit of time: the one who watches the other side gives it up.
                self._connection.send_all(waiting, math.inf)
            except LostConnection:
                self._connection.close()  # the reader of this side sees the end
                return
            if parts is not None:
                parts = self._queue.get()


def _wait(_: float) -> None:
    """Goes on waiting."""
