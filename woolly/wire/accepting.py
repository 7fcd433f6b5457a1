"""Accepting: connections of a listening socket, one after another, also after the system refused one."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

__all__ = ["accepted"]

_PAUSE = 0.5  # seconds after an error; most end by themselves (too many open files, a client that left)


def accepted(
    listener: socket.socket, is_over: Callable[[], bool], tell: Callable[[str], None]
) -> Iterator[tuple[socket.socket, str]]:
    """Yields connections, each with the host of its client, until `is_over`: the owner closes the listener then.

    `tell` gets a sentence when an error comes that the owner did not cause; errors that follow it at once are left out.
    """
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
