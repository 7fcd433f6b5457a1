"""Addresses of images, and what a server may be made to fetch."""

import base64
import http.server
import math
import socket
import threading
from contextlib import suppress
from types import SimpleNamespace
from urllib.parse import quote, unquote

import pytest

from woolly.errors import RequestError
from woolly.multimodal.fetch import check_address, fetch
from woolly.multimodal.inputs import ImageInput
from woolly.multimodal.urls import image_bytes, read_base64

PNG = b"\x89PNG\r\n\x1a\n"
B64 = base64.b64encode(PNG).decode()
CLOCK = SimpleNamespace(now=0.0)  # of the test of slow servers


def refusal(call, *given, **options):
    with pytest.raises(RequestError) as error:
        call(*given, **options)
    return str(error.value)


def test_data_url_is_decoded():
    assert image_bytes(f"data:image/png;base64,{B64}") == PNG
    assert image_bytes(f"DATA:image/PNG;name=a;BASE64,{B64}") == PNG


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("data:image/png,abc", "the data: URL is malformed"),
        (f"data:;base64,{B64}", "the data: URL is malformed"),
        (f"data:text/plain;base64,{B64}", "the media type is 'text/plain'"),
        (f"data:image/svg+xml;base64,{B64}", "SVG files are not supported"),
        (f"data:image/png;base64,{B64[:-1]}", "is not valid base64"),
        ("data:image/png;base64,iVBO Rw==", "is not valid base64"),
        ("data:image/png;base64,", "is empty"),
        ("file:///etc/passwd", "file: URLs are not supported"),
        ("FILE:///etc/passwd", "file: URLs are not supported"),
        ("http://example.com/a.png", "does not fetch remote images"),
        ("/etc/passwd", "is not an image URL"),
        ("ftp://example.com/a.png", "is not an image URL"),
    ],
)
def test_other_url_schemes_are_rejected(address, said):
    assert said in refusal(image_bytes, address)


def test_base64_size_is_checked_before_decoding():
    assert "larger than 64 MiB" in refusal(read_base64, "A" * (90 * 2**20))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
        "2002:7f00:1::", "::ffff:10.0.0.1", "fec0::1", "3fff::1", "192.88.99.1", "192.0.0.8", "168.63.129.16",
        "::ffff:168.63.129.16",
    ],
)  # fmt: skip
def test_non_public_addresses_are_rejected(address):
    assert "is not on the public internet" in refusal(check_address, address, "host")


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_accepted(address):
    check_address(address, "host")


class Server(http.server.BaseHTTPRequestHandler):
    """Serves an image, redirects, and what is too large."""

    def do_GET(self):
        if self.path == "/a.png":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PNG + self.headers["Host"].encode())
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(70):
                    self.wfile.write(bytes(2**20))
            except OSError:
                pass
        elif self.path.startswith("/to"):
            path, _, there = self.path.partition("?")
            self.send_response(302)
            self.send_header("Location", {"/to": "/a.png", "/to-loop": "/to-loop"}.get(path, unquote(there)))
            self.end_headers()
        elif self.path == "/slow":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            CLOCK.now += 30
            with suppress(OSError):  # the client has left
                self.wfile.write(b"a" * 100_000)
        else:
            self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made.server_address[1]
        made.shutdown()
        thread.join()


def test_server_on_this_machine_is_rejected(server):
    said = refusal(image_bytes, f"http://127.0.0.1:{server}/a.png", allows_remote=True)
    assert said == "127.0.0.1 is not on the public internet; use a public server or send a data: URL"
    assert "not on the public internet" in refusal(fetch, f"http://localhost:{server}/a.png")
    assert "not on the public internet" in refusal(fetch, f"http://[::1]:{server}/a.png")
    assert "not on the public internet" in refusal(fetch, f"http://2130706433:{server}/a.png")  # 127.0.0.1 as a number


def test_name_with_one_private_address_is_rejected(server):
    said = refusal(fetch, f"http://example.com:{server}/", resolve=lambda *_: ["8.8.8.8", "10.0.0.1"])
    assert "example.com is not on the public internet" in said


def test_image_is_fetched_and_redirects_are_followed(server):
    def here(*_):
        return ["127.0.0.1"]

    options = {"resolve": here, "checks": False}
    for path in ("a.png", "to"):
        assert fetch(f"http://example.com:{server}/{path}", **options) == PNG + f"example.com:{server}".encode()
    assert "redirected more than 3 times" in refusal(fetch, f"http://example.com:{server}/to-loop", **options)
    assert "HTTP status 404" in refusal(fetch, f"http://example.com:{server}/none", **options)
    assert "larger than 64 MiB" in refusal(fetch, f"http://example.com:{server}/large", **options)


def test_endless_header_is_abandoned_at_the_deadline(server, monkeypatch):
    monkeypatch.setattr("woolly.multimodal.fetch.time", SimpleNamespace(monotonic=lambda: CLOCK.now))
    said = refusal(fetch, f"http://example.com:{server}/slow", resolve=lambda *_: ["127.0.0.1"], checks=False)
    assert said == "failed to fetch the image from example.com: timed out"


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("http://10.0.0.1/", "10.0.0.1 is not on the public internet"),
        ("//169.254.169.254/latest/meta-data", "169.254.169.254 is not on the public internet"),
        ("http://[::ffff:10.0.0.1]/", "is not on the public internet"),
        ("http://inside.example/", "inside.example is not on the public internet"),
        ("http://u:p@example.com/", "contains a user name or password"),
        ("file:///etc/passwd", "is not a valid URL"),
        ("gopher://example.com/", "is not a valid URL"),
        ("http://example.com:99999/", "is not a valid URL"),
    ],
)
@pytest.mark.parametrize("n_before", [0, 2])
def test_every_redirect_is_checked_like_the_first_address(server, monkeypatch, there, says, n_before):

    connected = []

    def check(address, host):
        if address != "127.0.0.1":  # the test's own server
            check_address(address, host)

    def connect(address, timeout):
        connected.append(address)
        return socket.create_connection(address, timeout=timeout)

    monkeypatch.setattr("woolly.multimodal.fetch.check_address", check)
    monkeypatch.setattr("woolly.multimodal.fetch.socket", SimpleNamespace(create_connection=connect))
    hops = [there]
    for _ in range(n_before + 1):
        hops.insert(0, f"http://first.example:{server}/to-there?{quote(hops[0])}")
    names = {"first.example": "127.0.0.1", "inside.example": "192.168.0.7"}
    said = refusal(fetch, hops[0], resolve=lambda host, _: [names.get(host, host)])
    assert says in said
    assert connected == [("127.0.0.1", server)] * (n_before + 1)  # none to where the last one leads


def test_dns_name_is_resolved_once(server):
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    found = fetch(f"http://example.com:{server}/a.png", resolve=lambda *_: next(answers), checks=False)
    assert found.startswith(PNG) and next(answers) == ["10.0.0.1"]


@pytest.mark.parametrize("url", ["http://u:p@example.com/", "http:///a", "http://a b/", "http://example.com:99999/"])
def test_odd_addresses_are_rejected(url):
    refusal(fetch, url)


def test_images_of_one_conversation_share_their_time_limit():
    given = ImageInput(url="http://93.184.216.34/a.png", where="messages.0.content.0")
    with pytest.raises(RequestError, match=r"messages.0.content.0: failed to fetch .*: timed out"):
        given.read(allows_remote=True, deadline=-math.inf)  # nothing is connected to
