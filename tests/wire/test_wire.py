"""Messages arrive as they were sent, and from no one who does not know the token."""

import socket
import struct
import threading
import time

import numpy as np
import pytest

from woolly.wire import (
    BadMessage,
    Connection,
    Link,
    LostConnection,
    RejectedConnection,
    WireMessage,
    greeted,
    hang_up,
)
from woolly.wire import connection as wire

TOKEN = b"a token that both sides know"


@pytest.fixture(autouse=True)
def sockets(monkeypatch):
    """Makes pairs of sockets that are closed when the test ends."""
    made, pair_of = [], socket.socketpair

    def kept():
        made.extend(both := pair_of())
        return both

    monkeypatch.setattr(socket, "socketpair", kept)
    yield
    for one in made:
        one.close()


def forever(_):
    """Goes on waiting."""


def patient(seconds):
    """Goes on waiting for as long as a test may take."""
    assert seconds < 60


def pair(theirs=TOKEN, ours=TOKEN):
    """Two connections, or the errors that their sides got instead."""
    a, b = socket.socketpair()
    got = {}

    def serve():
        try:
            got["server"] = Connection(b, theirs, is_client=False)
        except OSError as error:
            got["server"] = error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = Connection(a, ours, is_client=True)
    except OSError as error:
        client = error
    thread.join()
    return client, got["server"]


def test_message_arrives_with_its_fields_and_arrays():
    client, server = pair()
    arrays = {
        "rows": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],  # not in one piece
        "none": np.zeros((2, 0), np.int32),
        "bytes": np.arange(256, dtype=np.uint8),
    }
    for _ in range(2):  # the second has a number of its own
        client.send(WireMessage("run", {"first": 3, "names": ["a"], "open": None}, arrays))
        got = server.receive(patient)
        assert (got.kind, got.fields) == ("run", {"first": 3, "names": ["a"], "open": None})
        assert got.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(got.arrays[name], array)
            assert got.arrays[name].dtype == array.dtype
    server.send(WireMessage("done"))
    assert client.receive(patient) == WireMessage("done")
    for end in (client, server):
        end.close()
        end.close()


def test_message_larger_than_socket_buffers_arrives():
    client, server = pair()
    rows = np.random.RandomState(1).standard_normal((512, 4096)).astype(np.float32)
    thread = threading.Thread(target=client.send, args=(WireMessage("rows", arrays={"rows": rows}),))
    thread.start()
    np.testing.assert_array_equal(server.receive(patient).arrays["rows"], rows)
    thread.join()


def test_wrong_token_is_rejected_on_both_sides():
    client, server = pair(theirs=b"another token", ours=TOKEN)
    assert isinstance(client, RejectedConnection) and isinstance(server, RejectedConnection)
    assert "the peer has a different token" in str(client)


def raw_pair():
    """A connection and the socket of its other side, which has shaken hands by hand."""
    a, b = socket.socketpair()
    recorded = []

    class Recorded:
        """The socket, with what it sent kept."""

        def __getattr__(self, name):
            return getattr(a, name)

        def send(self, data):
            n = a.send(data)
            recorded.append(bytes(data[:n]))
            return n

    got = []
    thread = threading.Thread(target=lambda: got.append(Connection(b, TOKEN, is_client=False)))
    thread.start()
    client = Connection(Recorded(), TOKEN, is_client=True)
    thread.join()
    recorded.clear()
    return client, a, got[0], recorded


def test_changed_or_replayed_message_is_rejected():
    client, plain, server, recorded = raw_pair()
    client.send(WireMessage("pay", {"sum": 10}))
    assert server.receive(patient).fields == {"sum": 10}
    plain.sendall(b"".join(recorded))  # the same once more
    with pytest.raises(LostConnection, match="a wrong HMAC"):
        server.receive(patient)
    client, plain, server, recorded = raw_pair()
    frame = bytearray(WireMessage("pay", {"sum": 10}).parts()[1])
    client.send(WireMessage("ping"))
    server.receive(patient)
    plain.sendall(struct.pack(">4sHxxQ", b"WLYS", wire.VERSION, len(frame)) + frame + bytes(32))
    with pytest.raises(LostConnection, match="a wrong HMAC"):
        server.receive(patient)


@pytest.mark.parametrize(
    ("head", "error", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n", RejectedConnection, "a different protocol"),
        (struct.pack(">4sHxxQ", b"WLYS", 9, 32), RejectedConnection, "protocol version 9; expected 2"),
        (struct.pack(">4sHxxQ", b"WLYS", 2, 5), LostConnection, "does not follow the handshake"),
        (struct.pack(">4sHxxQ", b"WLYS", 2, 1 << 40), LostConnection, "1099511627776 bytes"),
    ],
)
def test_invalid_handshake_closes_the_connection(head, error, sentence):
    a, b = socket.socketpair()
    a.sendall(head)
    with pytest.raises(error, match=sentence):
        Connection(b, TOKEN, is_client=False)
    a.close()


def test_disconnected_or_silent_peer_is_detected():
    client, server = pair()

    class EnoughError(Exception):
        """Raised by the one who waits."""

    def stop(silence):
        assert silence >= 0
        raise EnoughError

    with pytest.raises(EnoughError):
        server.receive(stop)
    client.close()
    with pytest.raises(LostConnection):
        server.receive(forever)
    with pytest.raises(LostConnection):
        for _ in range(1000):
            server.send(WireMessage("more", arrays={"rows": np.zeros(100_000, np.float32)}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\5hello",
        b"\0\0\1\0{}",
        WireMessage("a").parts()[0] + WireMessage("a").parts()[1] + b"more",
        *(
            struct.pack(">I", len(text)) + text
            for text in (
                b"[]",
                b"[" * 100_000,
                b'{"kind": "a", "arrays": {}, "fields": ' + b'{"a":' * 100_000,
                b'{"kind": "a", "fields": {}, "arrays": {"x": ["f4", 4611686018427387904, 4611686018427387904]}}',
                b'{"kind": 1, "fields": {}, "arrays": {}}',
                b'{"kind": "a", "fields": {}, "arrays": {"x": ["f4", -1]}}',
                b'{"kind": "a", "fields": {}, "arrays": {"x": ["f4", 100000000]}}',
                b'{"kind": "a", "fields": {}, "arrays": {"x": ["O", 1]}}',
                b'{"kind": "a", "fields": {}, "arrays": {"x": ["f4", 1.5]}}',
                b'{"kind": "a", "fields": {}, "arrays": {"x": 5}}',
            )
        ),
    ],
)
def test_invalid_message_bytes_are_rejected(data):
    with pytest.raises(BadMessage):
        WireMessage.read(data)


def test_unsupported_array_type_is_not_sent():
    with pytest.raises(BadMessage, match="unsupported type float64"):
        WireMessage("a", arrays={"x": np.zeros(3)}).parts()


def test_reflected_proof_is_rejected():
    """A stranger that returns what it gets, as a mirror does, has no token."""
    a, b = socket.socketpair()

    def mirror():
        while data := b.recv(4096):
            b.sendall(data)

    thread = threading.Thread(target=mirror)
    thread.start()
    with pytest.raises(RejectedConnection):
        Connection(a, TOKEN, is_client=True)
    thread.join()


def links():
    a, b = socket.socketpair()
    return [Link(Connection(one, None, is_client=one is a)) for one in (a, b)]


def test_messages_are_ordered_and_end_with_the_connection():
    link, other = links()
    for i in range(100):
        link.send(WireMessage("text", {"i": i, "text": "\n" * i}))
    link.finish()
    assert [message.fields["i"] for message in other] == list(range(100))
    other.close()
    other.send(WireMessage("late"))  # nothing happens


def test_message_is_sent_as_it_was_at_the_call():
    link, other = links()
    growing = []
    for i in range(50):
        growing.append(i)
        link.send(WireMessage("list", {"list": growing}))
    link.finish()
    assert [len(message.fields["list"]) for message in other] == list(range(1, 51))
    other.close()


def test_injected_line_closes_the_connection():
    """Whoever relays a connection lets the handshake pass, and writes what it likes after it."""
    for said in (b'{"op": "close"}\n\n', b"\0" * 100, struct.pack(">4sHxxQ", b"WLYS", 2, 2) + b"{}" + bytes(32)):
        _, plain, server, _ = raw_pair()
        plain.sendall(said)
        assert list(Link(server)) == []


@pytest.mark.parametrize("seconds", [0.1, 20.0, 1e12, float("inf")])
def test_connection_ends_if_the_other_machine_is_gone(seconds):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as ours, listener.accept()[0] as theirs:
        for one, other in (socket.socketpair(), (ours, theirs)):
            link = Link(Connection(one, None, is_client=True))
            link.end_without(seconds)
            link.send(WireMessage("ping"))
            assert next(iter(Link(Connection(other, None, is_client=False)))).kind == "ping"
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert found == 4 * ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) * 1000
            assert found == min(max(seconds, 4), 32000) * 1000


def test_silent_clients_block_nobody(monkeypatch):
    monkeypatch.setattr("woolly.wire.accept._MAX_HANDSHAKES", 8)
    listener, refused, is_over = socket.create_server(("127.0.0.1", 0), backlog=64), [], threading.Event()
    arriving = greeted(listener, TOKEN, is_over.is_set, refused.append, lambda host, reason: refused.append(reason))
    silent = []
    got = threading.Thread(target=lambda: silent.append(next(arriving)))
    got.start()
    others = [socket.create_connection(listener.getsockname()) for _ in range(40)]
    client = Connection(socket.create_connection(listener.getsockname()), TOKEN, is_client=True)
    got.join()
    client.send(WireMessage("hello"))
    assert silent[0][0].receive(patient).kind == "hello"
    # The oldest were dropped: soon no more than eight threads wait for what never comes.
    end = time.monotonic() + 60
    while len([one for one in threading.enumerate() if one.name == "woolly-greet"]) > 9:
        assert time.monotonic() < end
        time.sleep(0.005)
    is_over.set()
    hang_up(listener)
    assert list(arriving) == []
    for one in (*others, client, silent[0][0]):
        one.close()
