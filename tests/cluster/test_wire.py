"""What goes over the wire comes back as it was; who has another secret is not let in."""

import socket
import threading

import numpy as np
import pytest

from woolly.cluster.wire import (
    Link,
    read_array,
    read_error,
    read_logprobs,
    read_params,
    shake_hands,
    write_array,
    write_error,
    write_logprobs,
    write_params,
)
from woolly.errors import ModelError, RequestError
from woolly.sampling import SamplingParams
from woolly.sampling.logprobs import TokenLogprob

SECRET = "a secret of thirty-two characters"


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("seconds", [0.1, 20.0, 1e12, float("inf")])
def test_a_link_may_be_told_when_to_end_if_the_other_machine_is_gone(seconds, pair):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as ours, listener.accept()[0] as theirs:
        for one, other in (pair, (ours, theirs)):
            link = Link(one)
            link.end_without(seconds)
            link.send({"op": "ping"})
            assert next(iter(Link(other))) == {"op": "ping"}
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert found == 4 * ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) * 1000
            assert found == min(max(seconds, 4), 32000) * 1000


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1 / 3, top_p=0.1 + 0.2, stop=("a\n", "\ud800"), stop_token_ids=(1, 2)),
        SamplingParams(logit_bias={5: -3.5, "x": 1e-9}, adapters={0: 0.5, "name": 1.0}),
        SamplingParams(json_schema={"type": "object", "properties": {"b": {}, "a": {}}}),
        SamplingParams(choice=("yes", "no")),
        SamplingParams(mirostat=2, mirostat_tau=4.0),
        SamplingParams(samplers=("top_k", "temperature"), logprobs=3, context_shift=True, n_keep=2),
    ],
)
def test_parameters_come_back_as_one_answer_with_a_seed(params, pair):
    link, other = Link(pair[0]), Link(pair[1])
    link.send({"params": write_params(params, 7)})
    back = read_params(next(iter(other))["params"])
    assert back == SamplingParams(**{**vars(params), "seed": 7, "n": 1})
    link.close()
    other.close()


def test_errors_come_back_with_what_programs_read():
    error = read_error(write_error(RequestError("too long", field="prompt", code="context_length", limit=3, given=5)))
    assert type(error) is RequestError and str(error) == "too long"
    assert (error.field, error.code, error.limit, error.given) == ("prompt", "context_length", 3, 5)
    error = read_error(write_error(ModelError("changed", code="file_changed")))
    assert type(error) is ModelError and error.code == "file_changed"
    assert type(read_error(write_error(KeyError("x")))) is RuntimeError


def test_numbers_come_back_to_the_bit():
    logprobs = [TokenLogprob(3, -1 / 3, ((3, -1 / 3), (4, -0.1)))]
    assert read_logprobs(write_logprobs(logprobs)) == logprobs
    array = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    assert np.array_equal(read_array(write_array(array)), array)


def test_messages_come_in_order_and_end_with_the_link(pair):
    link, other = Link(pair[0]), Link(pair[1])
    for i in range(100):
        link.send({"i": i, "text": "\n" * i})
    link.finish()
    assert [message["i"] for message in other] == list(range(100))
    other.close()
    other.send({"op": "late"})  # nothing happens


@pytest.mark.parametrize(("theirs", "is_let_in"), [(SECRET, True), (SECRET + "!", False)])
def test_both_sides_need_the_secret(pair, theirs, is_let_in):
    refused = []

    def replica():
        try:
            shake_hands(pair[1], theirs, is_front=False)
        except RequestError as error:
            refused.append(error)

    thread = threading.Thread(target=replica)
    thread.start()
    try:
        shake_hands(pair[0], SECRET, is_front=True)
    except RequestError as error:
        refused.append(error)
    thread.join()
    assert len(refused) == (0 if is_let_in else 2)
    assert all("secret" in str(error) for error in refused)


def test_a_proof_cannot_be_sent_back(pair):
    """A stranger that returns what it gets, as a mirror does, has no secret."""

    def mirror():
        while data := pair[1].recv(4096):
            pair[1].sendall(data)

    thread = threading.Thread(target=mirror)
    thread.start()
    with pytest.raises(RequestError, match="did not show that it has the secret"):
        shake_hands(pair[0], SECRET, is_front=True)
    thread.join()
