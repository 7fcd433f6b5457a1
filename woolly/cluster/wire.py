"""The wire between a front and a replica: lines of JSON over a socket, and how requests and errors are written there.

A front sends `open`, `add`, `cancel`, `read`, `stop_reading`, `ping` and `close`; replica.py says what it replies.
"""

from __future__ import annotations

import base64
import json
import queue
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly import errors
from woolly.errors import RequestError, WoollyError
from woolly.sampling import SamplingParams
from woolly.sampling.logprobs import TokenLogprob
from woolly.wire import Connection

__all__ = [
    "PROTOCOL",
    "Link",
    "read_array",
    "read_error",
    "read_logprobs",
    "read_params",
    "shake_hands",
    "write_array",
    "write_error",
    "write_logprobs",
    "write_params",
]

PROTOCOL = 1  # raised when a message changes its meaning; a replica with another one is refused

_MOST_LINE = 1 << 30  # bytes; vectors of many texts are long
_DEFAULTS = SamplingParams()
_PAIRS = ("logit_bias", "adapters")  # mappings whose keys may be numbers, which JSON's keys are not


class Link:
    """Both ends of a connection are links. `send` never blocks: a thread of the link's own writes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="woolly-link", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queues a message; nothing happens if the other side is gone, which the reader notices."""
        self._queue.put(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def end_without(self, seconds: float) -> None:
        """Sets TCP keep-alive: closes the link after `seconds` without an ACK.

        A cut network tells neither side. The kernel answers, so a busy peer is not dropped; it counts whole seconds.
        """
        if self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return
        step = max(1, round(min(seconds / 4, 8000.0)))  # systems know no more than 32767
        times = {"TCP_KEEPIDLE": step, "TCP_KEEPINTVL": step, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 4000 * step}
        with suppress(OSError):  # closed meanwhile
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in times.items():
                if hasattr(socket, name):  # not on every system
                    self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields messages as they come, until the other side is gone."""
        with suppress(OSError, ValueError), self._file:
            while (line := self._file.readline(_MOST_LINE)).endswith(b"\n"):
                yield json.loads(line)

    def finish(self) -> None:
        """Writes what is queued, and closes."""
        self._queue.put(None)
        self._thread.join(2.0)
        self.close()

    def close(self) -> None:
        """Closes at once; a reader and a writer that wait wake up."""
        self._queue.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._socket.close()

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            lines, is_last = [first], False
            while not self._queue.empty():  # what waits goes out in one call
                line = self._queue.get()
                if line is None:
                    is_last = True
                    break
                lines.append(line)
            try:
                self._socket.sendall(b"".join(lines))
            except OSError:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # the reader of this side sees the end
                return
            if is_last:
                return


def shake_hands(connection: socket.socket, secret: str, *, is_front: bool) -> None:
    """Shows the other side that this one has the secret, and asks the same of it. RequestError if it has not.

    It is the handshake of every connection between processes; what follows are a link's lines, not its frames.
    """
    try:
        Connection(connection, secret.encode(), is_client=is_front)
    except ConnectionError as error:
        raise RequestError(f"the other side did not show that it has the secret ({error})") from None
    connection.settimeout(None)


def write_params(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Returns what differs from the defaults, as one answer with this seed."""
    written: dict[str, Any] = {}
    for one in fields(params):
        value = getattr(params, one.name)
        if one.name not in ("n", "seed") and value != getattr(_DEFAULTS, one.name):
            written[one.name] = list(value.items()) if one.name in _PAIRS else value
    return {**written, "seed": seed}


def read_params(written: Mapping[str, Any]) -> SamplingParams:
    """Returns the parameters that `write_params` wrote."""
    values: dict[str, Any] = {}
    for name, value in written.items():
        if name in _PAIRS:
            values[name] = dict(value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return SamplingParams(**values)


def write_logprobs(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    """Returns log-probabilities as lists; texts are left out, the reader has the vocabulary."""
    return [[one.token, one.logprob, one.top] for one in logprobs]


def read_logprobs(written: Sequence[Any]) -> list[TokenLogprob]:
    """Returns the log-probabilities that `write_logprobs` wrote."""
    return [TokenLogprob(token, logprob, tuple((id, number) for id, number in top)) for token, logprob, top in written]


def write_array(array: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Returns an array as text."""
    return {"shape": array.shape, "data": base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()}


def read_array(written: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Returns the array that `write_array` wrote."""
    flat = np.frombuffer(base64.b64decode(written["data"]), "<f4").astype(np.float32)
    return flat.reshape(tuple(written["shape"]))


def write_error(error: BaseException) -> dict[str, Any]:
    """Returns an error with what programs read of it."""
    names = ("code", "field", "limit", "given", "names")
    extra = {name: getattr(error, name) for name in names if getattr(error, name, None) is not None}
    return {"kind": type(error).__name__, "message": str(error), **extra}


def read_error(written: Mapping[str, Any]) -> Exception:
    """Returns the error that `write_error` wrote; one that is not Woolly's is a RuntimeError."""
    kind = getattr(errors, str(written["kind"]), None)
    message = str(written["message"])
    extra = {name: value for name, value in written.items() if name not in ("kind", "message")}
    if not (isinstance(kind, type) and issubclass(kind, WoollyError)):
        return RuntimeError(f"a replica failed: {written['kind']}: {message}")
    if not issubclass(kind, RequestError):
        extra = {name: value for name, value in extra.items() if name == "code"}
    error: Exception = kind(message, **extra)
    return error
