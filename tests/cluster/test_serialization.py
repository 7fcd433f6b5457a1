"""Requests and errors come back from the wire as they were."""

import socket

import pytest

from tests.cluster.launchers import link_of
from woolly.cluster.serialization import (
    read_error,
    read_logprobs,
    read_params,
    write_error,
    write_logprobs,
    write_params,
)
from woolly.errors import ModelError, RequestError
from woolly.sampling import SamplingParams
from woolly.sampling.logprobs import TokenLogprob
from woolly.wire import WireMessage


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


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
def test_parameters_round_trip_as_one_answer_with_a_seed(params, pair):
    link, other = link_of(pair[0]), link_of(pair[1], is_client=False)
    link.send(WireMessage("add", {"params": write_params(params, 7)}))
    back = read_params(next(iter(other)).fields["params"])
    assert back == SamplingParams(**{**vars(params), "seed": 7, "n": 1})
    link.close()
    other.close()


def test_errors_round_trip_with_their_machine_readable_fields():
    error = read_error(write_error(RequestError("too long", field="prompt", code="context_length", limit=3, given=5)))
    assert type(error) is RequestError and str(error) == "too long"
    assert (error.field, error.code, error.limit, error.given) == ("prompt", "context_length", 3, 5)
    error = read_error(write_error(ModelError("changed", code="file_changed")))
    assert type(error) is ModelError and error.code == "file_changed"
    assert type(read_error(write_error(KeyError("x")))) is RuntimeError


def test_numbers_round_trip_exactly():
    logprobs = [TokenLogprob(3, -1 / 3, ((3, -1 / 3), (4, -0.1)))]
    assert read_logprobs(write_logprobs(logprobs)) == logprobs
