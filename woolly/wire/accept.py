"""Accept connections of a listening socket, with concurrent handshakes and retries after errors."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from woolly.wire.connection import Connection

_PAUSE = 0.5  # retry delay in seconds after an error; most are transient (too many open files, a client that left)
_MAX_HANDSHAKES = 64  # maximum concurrent handshakes; a valid one takes milliseconds, so the oldest is dropped


def greeted(
    listener: socket.socket,
    token: bytes,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
    refuse: Callable[[str, str], None],
) -> Iterator[tuple[Connection, str]]:
    """Yield authenticated connections, each with the host of its client, until `is_over`.

    The owner ends it with `hang_up`. Each handshake has its own thread, so that silent clients block
    no others. `tell` gets a sentence for an error that the owner did not cause; errors that follow
    immediately are left out. `refuse` gets the host and the reason of a rejected client.
    """
    arrived: queue.SimpleQueue[tuple[Connection, str] | None] = queue.SimpleQueue()
    greeting: dict[socket.socket, None] = {}  # in order of arrival
    lock = threading.Lock()
    is_left = False

    def greet(sock: socket.socket, host: str) -> None:
        try:
            connection = Connection(sock, token, is_client=False)
        except ConnectionError as error:
            refuse(host, str(error))
        else:
            with lock:
                if not is_left:
                    arrived.put((connection, host))
            if is_left:
                connection.close()
        finally:
            with lock:
                greeting.pop(sock, None)

    def accept() -> None:
        for sock, host in _accepted(listener, is_over, tell):
            with lock:
                oldest = next(iter(greeting)) if len(greeting) >= _MAX_HANDSHAKES else None
                if oldest is not None:
                    del greeting[oldest]
                greeting[sock] = None
            if oldest is not None:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            try:
                threading.Thread(target=greet, args=(sock, host), name="woolly-greet", daemon=True).start()
            except RuntimeError:  # the system grants no more threads
                with lock:
                    greeting.pop(sock, None)
                sock.close()
                tell("a connection was closed, because the system grants no more threads")
        arrived.put(None)

    threading.Thread(target=accept, name="woolly-accept", daemon=True).start()
    try:
        while (one := arrived.get()) is not None:
            yield one
    finally:
        with lock:
            is_left = True
        while not arrived.empty():
            if (left := arrived.get()) is not None:
                left[0].close()


def hang_up(listener: socket.socket) -> None:
    """Close a listening socket, and wake the thread that waits in `accept`."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # the close alone may not wake `accept`
    listener.close()


def _accepted(
    listener: socket.socket, is_over: Callable[[], bool], tell: Callable[[str], None]
) -> Iterator[tuple[socket.socket, str]]:
    is_failing = False
    while not is_over():
        try:
            connection, (host, *_) = listener.accept()
        except OSError as error:
            if is_over():
                return
            if not is_failing:
                tell(f"a connection could not be accepted ({error.strerror or error}); others are waited for")
            is_failing = True
            time.sleep(_PAUSE)
            continue
        is_failing = False
        yield connection, str(host)
