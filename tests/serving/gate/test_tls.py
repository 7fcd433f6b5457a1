"""TLS: certificates, and the gate's timeouts over it."""

import asyncio
import contextlib
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from shutil import which
from types import SimpleNamespace

import pytest
import uvicorn

from woolly.errors import RequestError
from woolly.serving.gate.connection_timeouts import connection_class, socket_class
from woolly.serving.lifecycle import certificate as certificates
from woolly.serving.lifecycle import http_server
from woolly.serving.lifecycle.certificate import Certificate, make_certificate
from woolly.serving.settings.table import Settings

WAIT = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_certificate("0.0.0.0", tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def listening(app, context, stall_seconds=WAIT):
    """Serves an app over TLS on a thread; yields the port, and uvicorn's open connections.

    The head of a request has a time of its own, which a busy machine cannot exceed.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    http = connection_class(8, WAIT)
    http.stall_seconds = stall_seconds
    config = uvicorn.Config(
        app,
        http=http,
        ws=socket_class(WAIT),
        loop="asyncio",
        log_config=None,
        lifespan="off",
    )
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], server.server_state.connections
    finally:
        server.should_exit = server.force_exit = True
        thread.join(WAIT)


def connect(port, cert):
    plain = socket.create_connection(("127.0.0.1", port), WAIT)
    return ssl.create_default_context(cafile=cert).wrap_socket(plain, server_hostname="localhost")


def shown(port, cert):
    with connect(port, cert) as client:
        return client.getpeercert(binary_form=True)


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": scope["scheme"].encode()})


def test_generated_certificate_is_trusted_by_clients_with_its_file(files):
    made = Certificate(*files)
    assert re.fullmatch("(?:[0-9A-F]{2}:){31}[0-9A-F]{2}", made.fingerprint)
    with listening(hello, made.context) as (port, _), connect(port, files[0]) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        reply = b"".join(iter(lambda: client.recv(4096), b""))
        assert reply.endswith(b"https") and client.version() in ("TLSv1.2", "TLSv1.3")
    assert make_certificate("0.0.0.0", files[0].parent) == files  # kept
    assert sys.platform == "win32" or files[1].stat().st_mode & 0o077 == 0


def test_changed_certificate_is_used_for_the_next_client(files, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for own, given in zip((cert, key), files, strict=True):
        own.write_bytes(given.read_bytes())
    used = Certificate(cert, key)
    other = make_certificate("127.0.0.2", tmp_path / "other")
    with listening(hello, used.context) as (port, _):
        before = shown(port, cert)
        cert.write_bytes(other[0].read_bytes())
        with pytest.raises(RequestError, match="key values mismatch"):
            used.read()  # the key is still the earlier one's
        assert shown(port, files[0]) == before
        key.write_bytes(other[1].read_bytes())
        used.read()
        assert shown(port, cert) != before


@pytest.mark.parametrize(("timeout", "seconds"), [(30.0, 5.0), (2.0, 2.0)])
def test_handshake_has_a_timeout_of_five_seconds(files, monkeypatch, timeout, seconds):
    """A connection counts for --max-connections from the end of its handshake on."""
    given = []

    async def opened():
        loop = asyncio.get_running_loop()

        async def create_server(*_, **options):
            given.append(options["ssl_handshake_timeout"])
            raise OSError("no port in this test")

        async def start(server, sockets=None):
            with contextlib.suppress(OSError):
                await loop.create_server()
            raise asyncio.CancelledError

        monkeypatch.setattr(loop, "create_server", create_server)
        monkeypatch.setattr(uvicorn.Server, "startup", start)
        server = object.__new__(http_server._Server)
        server.config = SimpleNamespace(ssl=Certificate(*files).context)
        server._settings = SimpleNamespace(timeout=timeout)
        with contextlib.suppress(asyncio.CancelledError):
            await server.startup()

    asyncio.run(opened())
    assert given == [seconds]


def test_client_that_stops_reading_is_disconnected(files):
    lost = threading.Event()

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(_until_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            await asyncio.sleep(0)
        lost.set()

    listens = listening(endless, Certificate(*files).context, stall_seconds=0.2)
    with listens as (port, _), connect(port, files[0]) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert lost.wait(WAIT)


def test_reply_stuck_in_the_lower_buffer_is_disconnected(files):
    """The app has written all of it, and asyncio's TLS too: only the socket's own transport still holds data."""
    written, n = threading.Event(), 1 << 24

    async def large(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % n)]})
        await send({"type": "http.response.body", "body": bytes(n)})
        written.set()

    listens = listening(large, Certificate(*files).context, stall_seconds=0.2)
    with listens as (port, connections), connect(port, files[0]) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert written.wait(WAIT)
        end = time.monotonic() + WAIT
        while connections and time.monotonic() < end:
            time.sleep(0.01)
        n_read = 0
        with contextlib.suppress(OSError):
            while part := client.recv(1 << 16):
                n_read += len(part)
        assert not connections and n_read < n


async def _until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def test_invalid_certificate_gives_a_one_line_error(files, tmp_path, monkeypatch):
    cert, key = files
    (tmp_path / "text").write_text("text")
    for given, says in (
        ((tmp_path / "none", key), "tls_cert is .*none, which cannot be read: No such file"),
        ((tmp_path / "text", key), "which cannot be read: it is not a certificate in PEM"),
        ((cert, tmp_path / "none"), "tls_key is .*none, which cannot be read: No such file"),
        ((cert, tmp_path / "text"), "cannot be used: .*; expected a PEM certificate and its key"),
    ):
        with pytest.raises(RequestError, match=says):
            Certificate(*given)
    now = time.time()
    for days, says in ((900, "expired on 20"), (-900, "is not valid before 20")):
        monkeypatch.setattr(time, "time", lambda days=days: now + days * 86_400)
        with pytest.raises(RequestError, match=says):
            Certificate(cert, key)
    for settings, says in (
        ({"tls": "on"}, "tls is 'on'; expected auto"),
        ({"tls_cert": cert}, "tls_cert is set without tls_key"),
        ({"tls_key": key}, "tls_key is set without tls_cert"),
        ({"tls": "auto", "tls_cert": cert, "tls_key": key}, "cannot be combined"),
    ):
        with pytest.raises(RequestError, match=says):
            Settings(**settings)


@pytest.mark.skipif(which("openssl") is None, reason="needs the command openssl")
def test_command_generates_a_certificate_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    cert, key = make_certificate("box.example", tmp_path)
    text = subprocess.run(["openssl", "x509", "-in", cert, "-noout", "-text"], capture_output=True, text=True).stdout
    assert "DNS:box.example" in text and "IP Address:127.0.0.1" in text
    Certificate(cert, key)
    monkeypatch.setattr(certificates, "which", lambda name: None)
    with pytest.raises(RequestError, match="cryptography or the command openssl"):
        make_certificate("another.example", tmp_path)
