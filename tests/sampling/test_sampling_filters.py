"""Each sampler keeps, orders and changes what its paper says, by comparison with a plain telling of it."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cases import sampling as paper
from tests.cases.tiny import byte_vocabulary
from woolly.sampling.candidates import Candidates
from woolly.sampling.dry_breakers import sequence_breakers
from woolly.sampling.history import History
from woolly.sampling.samplers.dry import Dry
from woolly.sampling.samplers.min_p import MinP
from woolly.sampling.samplers.penalties import RepetitionPenalty
from woolly.sampling.samplers.temperature import Temperature
from woolly.sampling.samplers.top_k import TopK
from woolly.sampling.samplers.top_n_sigma import TopNSigma
from woolly.sampling.samplers.top_p import TopP
from woolly.sampling.samplers.typ_p import Typical
from woolly.sampling.samplers.xtc import Xtc
from woolly.tokens import Tokenizer

ENOUGH = 1e-4  # closer decisions are a matter of rounding

# Distinct: of equal logits the paper does not say which comes first.
logits = st.lists(st.integers(-100, 100), min_size=2, max_size=40, unique=True).map(
    lambda values: np.array(values, np.float32) / 8
)
share = st.floats(0.01, 0.99)
keep = st.sampled_from([0, 0, 1, 3, 100])


def run(step, row, sort_first=False):
    """Candidates after a step: [(token, logit), ...]. The row itself must not change."""
    before = row.copy()
    candidates = Candidates(row)
    if sort_first:
        candidates.sort()
    with np.errstate(all="ignore"):
        step.apply(candidates)
    np.testing.assert_array_equal(row, before)
    return [(candidates.id(place), float(logit)) for place, logit in enumerate(candidates.logits)]


def pairs(row):
    return list(enumerate(row.tolist()))


@given(logits, st.integers(1, 50), st.booleans())
def test_top_k(row, k, sort_first):
    assert run(TopK(k), row, sort_first) == paper.top_k(pairs(row), k)[0]


@given(logits, share, keep, st.booleans())
def test_top_p(row, p, min_keep, sort_first):
    expected, margin = paper.top_p(pairs(row), p, min_keep)
    assume(margin > ENOUGH)
    assert run(TopP(p, min_keep), row, sort_first) == expected


@pytest.mark.parametrize("p", [0.2, 0.9, 0.98])
@pytest.mark.parametrize("min_keep", [0, 2000])
@pytest.mark.parametrize("scale", [0.5, 10.0])
def test_top_p_beyond_the_first_candidates(p, min_keep, scale):
    row = (np.random.RandomState(1).permutation(3000) / 3000 * scale).astype(np.float32)
    expected, margin = paper.top_p(pairs(row), p, min_keep)
    assert margin > 1e-6
    assert run(TopP(p, min_keep), row) == expected


@given(logits, share, keep, st.booleans())
def test_min_p(row, p, min_keep, sort_first):
    given_pairs = paper.by_logit(pairs(row)) if sort_first else pairs(row)
    expected, margin = paper.min_p(given_pairs, p, min_keep)
    assume(margin > ENOUGH)
    assert run(MinP(p, min_keep), row, sort_first) == expected


@given(logits, share, keep)
def test_typical(row, p, min_keep):
    expected, margin = paper.typical(pairs(row), p, min_keep)
    assume(margin > ENOUGH)
    assert run(Typical(p, min_keep), row) == expected


def test_typical_ignores_banned_tokens():
    row = np.log(np.array([0.5, 0.3, 0.2, 0.1], np.float32))
    kept = paper.typical(pairs(row), 0.5)[0]
    assert run(Typical(0.5, 0), np.append(row, [-np.inf] * 3).astype(np.float32)) == kept


@given(logits, st.floats(0.1, 4))
def test_top_n_sigma(row, n):
    expected, margin = paper.top_n_sigma(pairs(row), n)
    assume(margin > ENOUGH)
    assert run(TopNSigma(n), row) == expected


def test_top_n_sigma_ignores_banned_tokens():
    row = np.array([0, 1, 2, 3, -np.inf], np.float32)
    assert run(TopNSigma(1.0), row) == [*paper.top_n_sigma(pairs(row[:4]), 1.0)[0], (4, -np.inf)]


@given(logits, st.floats(0.01, 0.5), keep)
def test_xtc(row, threshold, min_keep):
    expected, margin = paper.xtc(pairs(row), threshold, min_keep)
    assume(margin > ENOUGH)
    assert run(Xtc(1.0, threshold, min_keep, seed=1), row) == expected


def test_xtc_acts_with_its_probability():
    step = Xtc(0.3, 0.1, 0, seed=5)
    row = np.zeros(4, np.float32)
    assert sum(len(run(step, row)) == 1 for _ in range(2000)) / 2000 == pytest.approx(0.3, abs=0.03)


def test_xtc_with_threshold_zero_leaves_a_possible_token():
    assert run(Xtc(1.0, 0.0, 0, seed=1), np.array([0, 1, -np.inf], np.float32))[0] == (0, 0.0)


@given(logits, st.floats(0.1, 3), st.floats(0.05, 2), st.floats(0.2, 3))
def test_dynamic_temperature_follows_the_entropy(row, temperature, spread, exponent):
    by = paper.dynamic_temperature(pairs(row), temperature, spread, exponent)
    assume(by > 0.01)
    # The entropy of a row that is all but certain is rounding alone, in float32 as in llama.cpp.
    assume(len(row) == 1 or np.sort(row)[-1] - np.sort(row)[-2] < 7)
    found = run(Temperature(temperature, spread, exponent), row)
    assert [token for token, _ in found] == [token for token, _ in paper.by_logit(pairs(row))]
    np.testing.assert_allclose([x for _, x in found], np.sort(row)[::-1] / by, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-38])
def test_overflowing_temperature_leaves_the_likeliest(temperature):
    found = run(Temperature(temperature, 0.0, 1.0), np.array([1, 9, -5], np.float32))
    assert [token for token, logit in found if logit > -np.inf] == [1]


histories = st.lists(st.integers(0, 5), max_size=40)


@given(histories, st.sampled_from([-1, 1, 3, 64]), st.floats(0.5, 2), st.floats(-1, 1), st.floats(-1, 1), st.data())
def test_penalties_use_only_their_window(tokens, last_n, repeat, frequency, presence, data):
    row = np.linspace(-3, 3, 8, dtype=np.float32)
    history = History(tokens)
    step = RepetitionPenalty(history, last_n, repeat, frequency, presence)
    for token in [None, *data.draw(histories)]:
        if token is not None:
            tokens = [*tokens, token]
            history.append(token)
        expected = paper.penalized(row, tokens, last_n, repeat, frequency, presence)
        np.testing.assert_allclose([x for _, x in run(step, row)], expected, rtol=1e-5, atol=1e-5)
        shortlist = dict(run(step, row, sort_first=True))
        np.testing.assert_allclose([shortlist[t] for t in range(8)], expected, rtol=1e-5, atol=1e-5)


@given(
    histories,
    st.sampled_from([-1, 4, 20]),
    st.floats(0.1, 3),
    st.floats(1, 2),
    st.integers(0, 4),
    st.sets(st.sampled_from([(0,), (1,), (2, 3), (2, 3, 4), (5, 5)])),
    st.booleans(),
)
def test_dry_penalizes_continued_repetition(tokens, last_n, multiplier, base, allowed, breakers, sort_first):
    row = np.linspace(-3, 3, 8, dtype=np.float32)
    by_first = {b[0]: [c[1:] for c in breakers if c[0] == b[0]] for b in breakers}
    step = Dry(History(tokens), last_n, multiplier, base, allowed, by_first)
    expected = paper.dry(row, tokens, last_n, multiplier, base, allowed, breakers)
    found = dict(run(step, row, sort_first))
    np.testing.assert_allclose([found[t] for t in range(8)], expected, rtol=1e-4, atol=1e-4)


def test_dry_penalty_stays_finite():
    step = Dry(History([1] * 5000), -1, 1.0, 4.0, 2, {})
    assert np.isfinite(dict(run(step, np.zeros(3, np.float32)))[1])


def test_dry_breakers_are_tokens_or_their_ends():
    tokenizer = Tokenizer.from_metadata(byte_vocabulary())
    named = {text: tokenizer.encode(text, add_special=False)[0] for text in ("t", "th", "the", " the", "n", "a")}
    breakers = sequence_breakers(tokenizer, ("the", "n"))
    tail = tuple(tokenizer.encode("he", add_special=False))
    assert breakers[named["t"]] == [tail]
    assert breakers[named["th"]] == [tuple(tokenizer.encode("e", add_special=False))]
    assert breakers[named["the"]] == breakers[named[" the"]] == breakers[named["n"]] == [()]
    assert named["a"] not in breakers
    assert sequence_breakers(tokenizer, ("the", "n")) is breakers
