"""Tokens are drawn from the distribution that the parameters describe, reproducibly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly.engine import SamplingParams
from woolly.engine.sampler import Sampler
from woolly.errors import ModelError, RequestError

OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def draws(logits, n=4000, **params):
    sampler = Sampler(SamplingParams(**{"seed": 1, **params}))
    return np.array([sampler.choose(np.asarray(logits, np.float32)) for _ in range(n)])


def test_temperature_zero_takes_the_likeliest_and_the_lowest_of_equals():
    assert set(draws([0.0, 3.0, 3.0, 1.0], n=10, temperature=0.0)) == {1}


def test_frequencies_follow_the_softmax_at_the_temperature():
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    counts = np.bincount(draws(logits, temperature=0.5, **OPEN), minlength=4) / 4000
    expected = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum()
    np.testing.assert_allclose(counts, expected, atol=0.03)


def test_top_k_keeps_the_k_likeliest():
    assert set(draws([0.0, 0.3, 0.2, 0.1], temperature=5.0, top_k=2, top_p=1.0, min_p=0.0)) == {1, 2}


def test_top_p_keeps_the_shortest_head_that_reaches_it():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert set(draws(logits, temperature=1.0, top_k=0, top_p=0.75, min_p=0.0)) == {0, 1}
    assert set(draws(logits, temperature=1.0, top_k=0, top_p=0.0, min_p=0.0, n=50)) == {0}


def test_min_p_drops_what_is_unlikely_beside_the_likeliest():
    assert set(draws(np.log([0.5, 0.3, 0.15, 0.05]), temperature=1.0, top_k=0, top_p=1.0, min_p=0.25)) == {0, 1, 2}


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others():
    logits = np.zeros(1000)
    first, again, other = (draws(logits, n=20, seed=s, **OPEN) for s in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_uniform_numbers_are_those_of_std_mt19937():
    # The first outputs of std::mt19937(5489) are 3499211612 and 581869302: the low half comes first.
    sampler = Sampler(SamplingParams(seed=5489))
    assert sampler._uniform() == (3499211612 + 581869302 * 2**32) / 2**64


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60),
    st.integers(0, 70),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_any_logits_and_filters_give_a_token(logits, top_k, top_p, min_p):
    token = draws(logits, n=1, temperature=1.3, top_k=top_k, top_p=top_p, min_p=min_p)[0]
    assert 0 <= token < len(logits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.1),
        ("min_p", -0.5),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("seed", -1),
        ("seed", 2**32),
        ("stop", ""),
        ("stop", [1]),
        ("stop", 5),
        ("ignore_eos", "no"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=f"^{name} is "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [1.0, np.inf], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(logits, temperature):
    with pytest.raises(ModelError, match="not finite"):
        draws(logits, n=1, temperature=temperature)


def test_a_single_stop_string_may_be_given_bare():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
