"""Requests that mean harm, or come from broken clients: the server answers each, keeps its memory, and serves on."""

import contextlib
import json
import os
import random
import resource
import socket
import struct
import threading
import time

import httpx
import pytest

from tests.serving.conftest import SLOW_MAIN, WAIT, serving

RESET = struct.pack("ii", 1, 0)  # closing then cuts the connection off

FULL = ("too_many_connections", "queue_full")
LATE = ("request_timeout", "request_too_slow")  # by a server of few seconds, on a machine that stood still
SMALL = {"prompt": "One two three", "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def strict(tiny_model, tmp_path_factory):
    """A server with limits that a test can reach."""
    flags = ["--timeout", "3", "--max-body", "100KB", "--max-queue", "2", "-np", "2"]
    with serving(tiny_model, tmp_path_factory.mktemp("strict"), *flags, "--max-prompt", "200", ctx=512) as server:
        yield server


def assert_serves(server):
    with server.client() as client:
        deadline = time.monotonic() + WAIT
        while (reply := client.post("/v1/completions", json=SMALL)).status_code != 200:
            # What its clients have closed may be open for the server for a moment.
            assert reply.json()["error"]["code"] in (*FULL, *LATE) and time.monotonic() < deadline, reply.text
            time.sleep(0.05)
        assert reply.json()["usage"]["completion_tokens"] <= 3
        # No answer is left behind that nobody reads.
        while "woolly_answers_open 0.0" not in client.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert server.process.poll() is None


def connect(server):
    return socket.create_connection(server.address, timeout=WAIT)


def head(path, length):
    start = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{start}Content-Length: {length}\r\n\r\n".encode()


def reply_of(connection):
    data = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while part := connection.recv(65536):
            data += part
    return data


ROUTES = [
    "/v1/chat/completions", "/v1/completions", "/completion", "/tokenize", "/detokenize", "/apply-template",
    "/api/v1/inference/chat", "/api/v1/inference/complete", "/api/v1/sessions", "/api/v1/auth/token",
    "/api/v1/auth/validate", "/api/v1/performance/benchmark",
]  # fmt: skip

BODIES = [
    b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff\xfe\x00", b'{"prompt": "\xc3\x28"}', b'{"prompt": "\\ud800"}',
    b'{"prompt": NaN}', b'{"prompt": "x", "temperature": Infinity}', b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}", b"[" * 50_000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b'{"messages": ' + b"[" * 60 + b"]" * 60 + b"}", b'{"messages": [{"role": "user", "content": {"a": 1}}]}',
    b'{"messages": [{"role": 3, "content": null}]}', b'{"messages": {}}', b'{"messages": []}',
    b'{"prompt": {"a": [1]}}', b'{"prompt": [[[1]]]}', b'{"prompt": [-1]}', b'{"prompt": [1e3]}',
    b'{"prompt": [999999999999]}', b'{"tokens": [-1]}', b'{"tokens": ["x"]}', b'{"tokens": [99999999]}',
    b'{"prompt": "x", "n": 100000}', b'{"prompt": "x", "n": -1}', b'{"prompt": "x", "seed": 1e30}',
    b'{"prompt": "x", "top_p": "0.5"}', b'{"prompt": "x", "stop": [1, 2]}', b'{"prompt": "x", "max_tokens": true}',
    b'{"prompt": "x", "logit_bias": {"x": "y"}}', b'{"prompt": "x", "logit_bias": [[1]]}',
    b'{"prompt": "x", "grammar": "root ::= root"}', b'{"prompt": "x", "regex": "(a*)*(a*)*b{99999}"}',
    b'{"prompt": "x", "json_schema": {"$ref": "#"}}', b'{"prompt": "x", "grammar": "((((((("}',
    b'{"prompt": "x", "model": "../../etc/passwd"}', b'{"prompt": "x", "model": {"a": 1}}',
    b'{"prompt": "x", "unknown_field_of_ours": 1}', b'{"content": 5}', b'{"user_id": 5}', b'{"token": []}',
    b'{"metadata": 1}', b'{"test_type": "../x"}', b'{"test_type": "decode", "iterations": 99999999999}',
]  # fmt: skip


def test_no_body_of_the_corpus_breaks_any_route(strict):
    with strict.client() as client:
        for path in ROUTES:
            for body in BODIES:
                reply = client.post(path, content=body, headers={"content-type": "application/json"})
                assert reply.status_code < 500, (path, body[:80], reply.text)
                if reply.status_code >= 400:
                    error = reply.json()["error"]
                    assert error["message"] and error["code"], (path, body[:80])
                    assert "Traceback" not in reply.text and "site-packages" not in reply.text
    assert_serves(strict)


def test_wrong_content_types_and_methods_are_reported(strict):
    with strict.client() as client:
        for path in ROUTES:
            assert client.get(path).status_code in (200, 404, 405)
            for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
                reply = client.post(path, content=b"a=b", headers={"content-type": kind})
                assert 400 <= reply.status_code < 500 and reply.json()["error"]["message"]


def test_large_body_is_rejected_by_declared_and_actual_size(strict):
    with strict.client() as client:
        reply = client.post("/v1/completions", json={"prompt": "x" * 200_000})
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")

        def parts():
            for _ in range(200):
                yield b"x" * 1000

        reply = client.post("/v1/completions", content=parts(), headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    with connect(strict) as connection:
        connection.sendall(head("/v1/completions", 10**18))
        connection.sendall(b"x" * 1000)
        assert b"413" in connection.recv(65536)
    assert_serves(strict)


def test_long_prompt_is_rejected_with_both_numbers(strict):
    with strict.client() as client:
        reply = client.post("/v1/completions", json={"prompt": "sheep " * 100, "max_tokens": 1})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 200 tokens: the prompt has 600 tokens" in error["message"]
        assert client.post("/v1/completions", json={"prompt": "s" * 90_000, "max_tokens": 1}).status_code == 400


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 2000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/models/%ff%fe%00..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ],
)  # fmt: skip
def test_non_http_is_rejected_and_closed(strict, data):
    with connect(strict) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        reply = reply_of(connection)
        assert not reply or reply.startswith((b"HTTP/1.1 4",)), reply[:200]
    assert_serves(strict)


def test_http_1_0_needs_no_host(strict):
    with connect(strict) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert reply_of(connection).startswith(b"HTTP/1.1 200")


def test_nothing_is_read_after_a_body_with_two_lengths(strict):
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    request = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n" + both + hidden
    before = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"  # what waits behind it is read after its reply
    for sent, n_replies in ((request, 1), (before + request, 2)):
        with connect(strict) as connection:
            connection.sendall(sent)
            assert reply_of(connection).count(b"HTTP/1.1 ") == n_replies


def test_slow_sender_is_disconnected(strict):
    idle, headers, body = (connect(strict) for _ in range(3))
    with idle, headers, body:
        headers.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        body.sendall(head("/v1/completions", 50) + b'{"prompt"')
        for _ in range(8):  # a byte now and then does not help
            time.sleep(0.5)
            with contextlib.suppress(ConnectionError):
                headers.sendall(b"X")
                body.sendall(b" ")
        assert b"408" in reply_of(idle)
        with contextlib.suppress(ConnectionError):
            reply = reply_of(headers)
            assert not reply or b"408" in reply
        assert b"request_too_slow" in body.recv(65536)
    assert_serves(strict)


def test_one_connection_too_many_is_rejected_and_others_are_served(tiny_model, tmp_path):
    health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    flags = ("--timeout", "600", "--max-connections", "40")  # those that send nothing are not cut meanwhile
    with serving(tiny_model, tmp_path, *flags, ctx=512) as server:
        deadline = time.monotonic() + WAIT
        with contextlib.ExitStack() as stack:
            for _ in range(39):
                stack.enter_context(connect(server))
            while True:  # the connection that asked whether the server is ready may not be forgotten yet
                with connect(server) as last, connect(server) as extra:
                    last.sendall(health)
                    served, reply = reply_of(last), reply_of(extra)
                if b"200 OK" in served:
                    break
                assert b"too_many_connections" in served and time.monotonic() < deadline
            assert reply.startswith(b"HTTP/1.1 503") and b"Retry-After: 1" in reply and b"too_many_connections" in reply
        assert_serves(server)


def test_full_queue_is_reported_during_an_answer(tiny_model, tmp_path):
    body = {"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    flags = ("-np", "1", "--max-queue", "0")
    with serving(tiny_model, tmp_path, *flags, main=SLOW_MAIN) as small, small.client() as client:
        with small.slowly(), client.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            reply = httpx.post(f"{small.url}/v1/completions", json=SMALL, timeout=WAIT)
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
            assert int(reply.headers["retry-after"]) >= 1
        assert_serves(small)


def test_dropped_streams_free_their_slots(server):
    body = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True}
    request = [json.dumps({**body, "stream": stream}).encode() for stream in (True, False)]
    for i in range(20):
        connection = connect(server)
        connection.sendall(head("/v1/completions", len(request[i % 2])) + request[i % 2])
        if i % 2 == 0:
            connection.recv(100)
        else:
            time.sleep(0.02)
        if i % 3 == 0:  # a reset rather than an end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
    assert_serves(server)


def test_reader_that_stops_reading_delays_nobody(server):
    body = json.dumps(
        {"prompt": "Once", "max_tokens": 1200, "ignore_eos": True, "stream": True, "logprobs": 5}
    ).encode()
    slow = []
    try:
        for _ in range(3):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(WAIT)
            connection.connect(server.address)
            connection.sendall(head("/v1/completions", len(body)) + body)
            slow.append(connection)
        with server.client() as client:
            for _ in range(3):
                assert client.post("/v1/completions", json=SMALL).status_code == 200
    finally:
        for connection in slow:
            connection.close()
    assert_serves(server)


def test_reader_that_takes_nothing_is_disconnected_and_its_answer_ends(strict):
    """An answer without an end, of which nothing is read: what ends it is --timeout."""
    body = {"prompt": "Once", "n_predict": 1_000_000, "ignore_eos": True, "context_shift": True, "stream": True}
    request = json.dumps({**body, "n_probs": 100}).encode()  # much for each token, since the system's buffers take some
    with socket.socket() as connection, strict.client() as client:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(WAIT)
        connection.connect(strict.address)
        connection.sendall(head("/completion", len(request)) + request)
        begin = connection.recv(1)
        deadline = time.monotonic() + WAIT
        while "woolly_answers_open 0.0" not in client.get("/metrics").text:
            assert time.monotonic() < deadline, "it still runs for nobody"
            time.sleep(0.05)
        reported = begin + reply_of(connection)
        assert reported.startswith(b"HTTP/1.1 200") and not reported.endswith(b"0\r\n\r\n")
    assert_serves(strict)


def drop_connections(server, n, at_once=50):
    """Opens connections and drops them in every state that one can be in; gives how many the server took."""
    opened = []
    body = json.dumps({**SMALL, "stream": True}).encode()
    openings = [
        b"", b"GET", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        head("/v1/completions", 1000), head("/v1/completions", len(body)) + body[:10],
        head("/v1/completions", len(body)) + body,
    ]  # fmt: skip

    def work(first):
        for i in range(first, n, at_once):
            with contextlib.suppress(OSError), connect(server) as connection:
                # Answers cost the most: one of forty.
                connection.sendall(openings[6 if i % 40 == 0 else i % 6])
                opened.append(i)
                if i % 2:  # a reset rather than an end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(opened)


def test_connections_opened_and_dropped_leave_no_trace(server):
    """By default a few hundred; WOOLLY_DROPS=10000 for the whole number of docs/use/serving.md."""
    n = int(os.environ.get("WOOLLY_DROPS", "400"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 200, (soft, hard)
    drop_connections(server, 100)
    assert_serves(server)
    files = len(os.listdir(f"/proc/{server.process.pid}/fd"))  # noqa: PTH208
    memory = server.memory
    assert drop_connections(server, n) > 0.9 * n
    assert_serves(server)
    deadline = time.monotonic() + WAIT  # what was dropped last may still stand in the queue of the port
    while len(os.listdir(f"/proc/{server.process.pid}/fd")) > files + 5:  # noqa: PTH208
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert server.memory - memory < 30e6


def test_random_bytes_break_nothing(strict):
    rng = random.Random(5)
    for _ in range(40):
        with connect(strict) as connection, contextlib.suppress(ConnectionError):
            sound = head("/v1/completions", 40) + b'{"prompt": "x", "max_tokens": 1}        '
            data = bytearray(sound)
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            reply = reply_of(connection)
            assert b"HTTP/1.1 5" not in reply, (bytes(data), reply)
    assert_serves(strict)
