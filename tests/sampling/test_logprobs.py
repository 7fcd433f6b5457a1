"""Log-probabilities are the exact log-softmax of what the model gave, whatever the samplers do."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly.errors import ModelError
from woolly.sampling.logprobs import log_probabilities
from woolly.sampling.params import SamplingParams
from woolly.sampling.sampler import Sampler


def log_softmax(row):
    x = row.astype(np.float64)
    return x - x.max() - math.log(math.fsum(np.exp(x - x.max())))


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=80), st.data())
def test_token_and_alternatives_have_exact_logprobs(values, data):
    row = np.array(values, np.float32)
    token = data.draw(st.integers(0, len(row) - 1))
    n_top = data.draw(st.integers(0, len(row) + 5))
    expected = log_softmax(row)
    found = log_probabilities(row, token, n_top)
    assert found.token == token
    assert found.logprob == pytest.approx(expected[token], rel=1e-13, abs=1e-13)
    assert [t for t, _ in found.top] == np.argsort(-row, kind="stable")[:n_top].tolist()
    np.testing.assert_allclose([p for _, p in found.top], expected[[t for t, _ in found.top]], rtol=1e-13, atol=1e-13)


def test_probabilities_of_the_vocabulary_sum_to_one():
    row = (np.random.RandomState(3).standard_normal(49152) * 4).astype(np.float32)
    top = log_probabilities(row, 0, len(row)).top
    assert math.fsum(math.exp(p) for _, p in top) == pytest.approx(1.0, abs=1e-12)


def flip(ids, logits):
    return -logits


def test_samplers_do_not_change_logprobs():
    row = np.random.RandomState(0).standard_normal(50).astype(np.float32)
    params = SamplingParams(seed=1, logprobs=3, temperature=2.0, logit_bias={4: 50.0}, logits_processors=[flip])
    choice = Sampler(params).next(row)
    assert choice.logprob == log_probabilities(row, 4, 3)
    assert (choice.token, len(choice.logprob.top)) == (4, 3)


def test_logprobs_are_computed_only_on_request():
    row = np.zeros(5, np.float32)
    assert Sampler(SamplingParams(seed=1)).next(row).logprob is None
    assert Sampler(SamplingParams(seed=1, logprobs=0)).next(row).logprob.top == ()


def test_impossible_token_has_minus_infinity():
    assert log_probabilities(np.array([0.0, -np.inf], np.float32), 1, 0).logprob == -math.inf


@pytest.mark.parametrize("row", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_non_finite_row_is_an_error(row):
    with pytest.raises(ModelError, match="not finite"):
        log_probabilities(np.array(row, np.float32), 0, 1)
