"""Fetching of images, PDF files and videos from servers on the public internet.

Clients choose the URL, so they could reach internal machines (SSRF). Each name is therefore resolved once, all its
addresses are checked, and the connection uses a checked address, which prevents DNS rebinding. Redirects are checked as
well. No proxy is used.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from woolly.errors import RequestError
from woolly.multimodal.image_formats import MAX_BYTES

_SECONDS = 20.0  # per request
_MAX_REDIRECTS = 3
_CHUNK = 2**16
_REDIRECTS = (301, 302, 303, 307, 308)

# Accept header for each kind of input.
_ACCEPTED = {"image": "image/*", "file": "application/pdf", "video": "video/*"}

# Not public, although Python calls them global: deprecated site-local addresses, documentation, IANA's
# protocol assignments, the 6to4 relay, and the host address of Azure virtual machines.
_INTERNAL = tuple(
    ipaddress.ip_network(one)
    for one in ("fec0::/10", "3fff::/20", "192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")
)

Resolve = Callable[[str, int], list[str]]


def fetch(
    url: str,
    what: str = "image",
    *,
    deadline: float = math.inf,
    resolve: Resolve | None = None,
    checks: bool = True,
) -> bytes:
    """Fetch an http or https URL; raise RequestError if the address is not allowed or the request fails.

    `what` is "image", "file" or "video". The request ends at `deadline`, on the clock of time.monotonic, or after 20
    seconds. `resolve` and `checks` are for tests with a local server.
    """
    deadline = min(deadline, time.monotonic() + _SECONDS)
    for _ in range(_MAX_REDIRECTS + 1):
        parts = _split(url)
        try:
            answer = _ask(parts, resolve or _addresses, deadline, _ACCEPTED[what], checks=checks)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise RequestError(f"failed to fetch the {what} from {parts.hostname}: {reason}") from None
        if isinstance(answer, bytes):
            return answer
        there = urljoin(url, answer)
        if url.lower().startswith("https:") and not there.lower().startswith("https:"):
            raise RequestError(f"{parts.hostname} redirects the {what} from https to http; send a data: URL")
        url = there
    raise RequestError(f"the {what} is redirected more than {_MAX_REDIRECTS} times; send a data: URL")


def check_address(address: str, host: str) -> None:
    """Raise RequestError if an IP address is not public."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = [ip]
    if isinstance(ip, ipaddress.IPv6Address):  # addresses that embed an IPv4 address
        inner += [one for one in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())) if one is not None]
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    if not all(map(_is_public, inner[1:] or inner)):
        raise RequestError(f"{host} is not on the public internet; use a public server or send a data: URL")


def _is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if any(ip in network for network in _INTERNAL):
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise RequestError(f"{url[:60]!r} is not a valid URL; expected https://host/image.png") from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise RequestError(f"{url[:60]!r} is not a valid URL; expected https://host/image.png")
    if parts.username is not None or parts.password is not None:
        raise RequestError("the URL contains a user name or password; remove it")
    return parts


def _addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _ask(parts: SplitResult, resolve: Resolve, deadline: float, accepted: str, *, checks: bool) -> bytes | str:
    """Return the response body, or the URL of a redirect."""
    host, is_tls = parts.hostname or "", parts.scheme.lower() == "https"
    port = parts.port or (443 if is_tls else 80)
    addresses = resolve(host, port)
    if not addresses:
        raise OSError("the host name has no address")
    for address in addresses if checks else ():
        check_address(address, host)
    connection = http.client.HTTPConnection(host, port)
    connection.sock = socket.create_connection((addresses[0], port), timeout=_left(deadline))
    with closing(connection):
        connection.sock.settimeout(_left(deadline))  # limits the complete TLS handshake
        if is_tls:
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
            connection.sock.settimeout(_left(deadline))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        named = f"[{host}]" if ":" in host else host
        connection.putheader("Host", named if parts.port is None else f"{named}:{parts.port}")
        connection.putheader("Accept", accepted)
        connection.putheader("Accept-Encoding", "identity")
        connection.putheader("User-Agent", "woolly")
        connection.endheaders()
        with closing(_response(connection.sock, deadline)) as response:
            if response.status in _REDIRECTS and (there := response.getheader("Location")):
                return there
            if response.status != 200:
                raise OSError(f"HTTP status {response.status}")
            if response.getheader("Content-Encoding", "identity").lower() != "identity":
                raise OSError("unexpected Content-Encoding")
            return _body(response, deadline)


class _TimedReader(io.RawIOBase):
    """Reads a socket until the deadline. A socket timeout alone would restart with each byte of a slow server."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(_left(self._deadline))
        return self._socket.recv_into(buffer)


def _response(connected: socket.socket, deadline: float) -> http.client.HTTPResponse:
    """Return the response to a sent request, after reading its headers."""
    response = http.client.HTTPResponse(connected, method="GET")
    response.fp.close()
    response.fp = io.BufferedReader(_TimedReader(connected, deadline))
    response.begin()
    return response


def _body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    chunks: list[bytes] = []
    n_bytes = 0
    while True:
        chunk = response.read1(_CHUNK)
        _left(deadline)
        if not chunk:
            return b"".join(chunks)
        n_bytes += len(chunk)
        if n_bytes > MAX_BYTES:
            raise OSError(f"the body is larger than {MAX_BYTES >> 20} MiB")
        chunks.append(chunk)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise OSError("timed out")
    return left
