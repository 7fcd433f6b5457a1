"""Accepts connections of a listening socket, with concurrent handshakes and retries after errors."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from woolly.wire.connection import Connection

_PAUSE = 0.5  # retry delay in seconds; most errors are transient, such as too many open files
_MAX_HANDSHAKES = 64  # maximum concurrent handshakes; valid ones take milliseconds, so the oldest is dropped


def greeted(
    listener: socket.socket,
    token: bytes,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
    refuse: Callable[[str, str], None],
) -> Iterator[tuple[Connection, str]]:
    """Yield authenticated connections with their client hosts, until `is_over`.

    The owner stops the iteration with `hang_up`. Each handshake runs on a separate thread, so silent clients do not
    block others. `tell` is called with a message for the first of several consecutive errors, `refuse` with the host of
    a rejected client and the reason.
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
                    oldest.shutdown(socket.SHUT_RDWR)  # the thread of the handshake closes the socket
            try:
                threading.Thread(target=greet, args=(sock, host), name="woolly-greet", daemon=True).start()
            except RuntimeError:  # the system has no more threads
                with lock:
                    greeting.pop(sock, None)
                sock.close()
                tell("closed a connection: the system cannot start more threads")
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
    """Close a listening socket and wake the thread in `accept`."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # closing alone may not wake `accept`
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
                tell(f"failed to accept a connection ({error.strerror or error}); waiting for others")
            is_failing = True
            time.sleep(_PAUSE)
            continue
        is_failing = False
        yield connection, str(host)
