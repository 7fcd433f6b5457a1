"""Connection: authenticated messages over a socket, between two processes that share a token.

A frame is a header (magic, version, length), a body, and an HMAC-SHA256 of frame number, header and body. Each
direction has a separate key, derived from the token and a nonce of each side, so frames of other connections,
directions or positions are rejected. Frames are not encrypted.

A socket pair uses no token and no handshake, because no other process can reach it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from woolly.wire.message import BadMessage, WireMessage

VERSION = 2  # version of frames and messages

_MAGIC = b"WLYS"
_HEADER = struct.Struct(">4sHxxQ")  # magic, version, number of following bytes
_NUMBER = struct.Struct(">Q")
_NONCE = _PROOF = _TAG = 32
_MAX_MESSAGE_BYTES = 1 << 31  # maximum bytes per message: 512 rows of 260,000 logits take 0.5 GB
_SAYS_NO = b"refused".ljust(_PROOF)  # sent instead of the proof to a client with another token

_TICK = 0.1  # polling interval in seconds
_ABOUT_A_MINUTE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_HANDSHAKE = 10.0  # handshake timeout in seconds


class LostConnection(ConnectionError):  # noqa: N818 - named after the state
    """The peer closed the connection, timed out, or sent a frame with a wrong HMAC."""


class RejectedConnection(ConnectionError):  # noqa: N818 - named after the state
    """The peer has a different token or version, so retrying does not help."""


class Connection:
    """Mutually authenticated connection.

    Any thread may send; only one thread at a time may receive.
    """

    def __init__(self, sock: socket.socket, token: bytes | None, is_client: bool) -> None:
        """Perform the handshake within 10 seconds if there is a token. Closes the socket on failure."""
        self._socket = sock
        self._sending = threading.Lock()
        self._n_sent = self._n_received = 0
        try:
            sock.settimeout(_TICK)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _keep_alive(sock, _ABOUT_A_MINUTE)
            nonces = b"" if token is None else self._shake(token, is_client)
            sides = (b"of the client", b"of the server")
            keys = [hmac.digest(token or b"", side + nonces, "sha256") for side in sides]
            self._own_key, self._their_key = keys if is_client else reversed(keys)
        except OSError as error:
            self.close()
            raise error if isinstance(error, ConnectionError) else LostConnection(str(error)) from None

    def send(self, message: WireMessage, patience: float = 30.0) -> None:
        """Send a message; raise LostConnection if the peer reads nothing for `patience` seconds."""
        self.send_all([message.parts()], patience)

    def send_all(self, messages: Sequence[Sequence[bytes | memoryview]], patience: float = 30.0) -> None:
        """Send messages, each as the parts of `WireMessage.parts`. Messages without arrays are sent together."""
        with self._sending:
            small: list[bytes | memoryview] = []
            for parts in messages:
                header = _HEADER.pack(_MAGIC, VERSION, sum(len(part) for part in parts))
                mac = hmac.new(self._own_key, _NUMBER.pack(self._n_sent) + header, "sha256")
                for part in parts:
                    mac.update(part)
                self._n_sent += 1
                small += (header, *parts[:2])
                for large in parts[2:]:
                    self._write(b"".join(small), patience)
                    self._write(large, patience)
                    small = []
                small.append(mac.digest())
            self._write(b"".join(small), patience)

    def receive(self, go_on: Callable[[float], None]) -> WireMessage:
        """Return the next message; while waiting, call `go_on` about ten times a second with the seconds of silence.

        `go_on` may raise to stop waiting. If `go_on` raises within a message, the connection is unusable.
        """
        header = self._read(_HEADER.size, go_on)
        n_bytes = _length(header)
        data = self._read(n_bytes, go_on)
        tag = self._read(_TAG, go_on)
        mac = hmac.new(self._their_key, _NUMBER.pack(self._n_received) + header, "sha256")
        mac.update(data)
        if not hmac.compare_digest(mac.digest(), tag):
            raise LostConnection("received a message with a wrong HMAC")
        self._n_received += 1
        try:
            return WireMessage.read(data)
        except BadMessage as error:
            raise LostConnection(str(error)) from None

    def end_without(self, seconds: float) -> None:
        """End the connection when the peer's machine acknowledges nothing for `seconds`, even if idle.

        TCP keep-alive detects network failures, which are not reported to either side. A peer that computes or sleeps
        stays connected. The resolution is one second.
        """
        if self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return
        step = max(1, round(min(seconds / 4, 8000.0)))  # the operating systems' maximum is 32767
        times = {"TCP_KEEPIDLE": step, "TCP_KEEPINTVL": step, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 4000 * step}
        with contextlib.suppress(OSError):  # closed meanwhile
            _keep_alive(self._socket, times)

    def close(self) -> None:
        """End the connection; a waiting thread gets LostConnection. Thread-safe and idempotent."""
        with contextlib.suppress(OSError):  # already closed, or never open
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _shake(self, token: bytes, is_client: bool) -> bytes:
        """Authenticate both sides with the token; return both nonces."""
        end = time.monotonic() + _HANDSHAKE

        def go_on(_: float) -> None:
            if time.monotonic() > end:
                raise LostConnection("the peer did not authenticate in time")

        own = secrets.token_bytes(_NONCE)
        self._write(_HEADER.pack(_MAGIC, VERSION, _NONCE) + own, _HANDSHAKE)
        if _length(self._read(_HEADER.size, go_on)) != _NONCE:
            raise LostConnection("the peer does not follow the handshake protocol")
        theirs = bytes(self._read(_NONCE, go_on))
        nonces = own + theirs if is_client else theirs + own
        proofs = [hmac.digest(token, side + nonces, "sha256") for side in (b"client", b"server")]
        ours, wanted = proofs if is_client else reversed(proofs)
        if is_client:
            self._write(ours, _HANDSHAKE)
        shown = self._read(_PROOF, go_on)
        if not hmac.compare_digest(shown, wanted):
            if not is_client:
                self._write(_SAYS_NO, _HANDSHAKE)
            raise RejectedConnection("the peer has a different token")
        if not is_client:
            self._write(ours, _HANDSHAKE)
        return nonces

    def _write(self, data: bytes | memoryview, patience: float) -> None:
        left, last = memoryview(data), time.monotonic()
        while left:
            try:
                left = left[self._socket.send(left) :]
                last = time.monotonic()
            except TimeoutError:
                if time.monotonic() - last > patience:
                    raise LostConnection(f"the peer read nothing for {patience:g} seconds") from None
            except OSError as error:
                raise LostConnection(error.strerror or str(error)) from None

    def _read(self, n_bytes: int, go_on: Callable[[float], None]) -> bytearray:
        data = bytearray(n_bytes)
        left, last = memoryview(data), time.monotonic()
        while left:
            try:
                n = self._socket.recv_into(left)
            except TimeoutError:
                go_on(time.monotonic() - last)
                continue
            except OSError as error:
                raise LostConnection(error.strerror or str(error)) from None
            if n == 0:
                raise LostConnection("the peer closed the connection")
            left, last = left[n:], time.monotonic()
        return data


def _keep_alive(sock: socket.socket, times: Mapping[str, int]) -> None:
    """Enable TCP keep-alive, to detect a lost peer on an idle connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in times.items():
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _length(header: bytes | bytearray) -> int:
    magic, version, n_bytes = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise RejectedConnection("the peer uses a different protocol")
    if version != VERSION:
        raise RejectedConnection(f"the peer uses protocol version {version}; expected {VERSION}")
    if n_bytes > _MAX_MESSAGE_BYTES:
        raise LostConnection(f"the message has {n_bytes} bytes; the limit is {_MAX_MESSAGE_BYTES}")
    return int(n_bytes)
