"""Tokens are drawn from the distribution that the parameters describe, reproducibly, and a callback fails alone."""

import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.tiny import byte_vocabulary
from woolly.errors import CallbackError, ModelError, RequestError
from woolly.sampling import SamplingParams
from woolly.sampling.mt19937 import MersenneTwister
from woolly.sampling.sampler import Sampler
from woolly.tokens import Tokenizer

OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


class Allow:
    """A constraint that allows the same tokens always, and remembers what it was told."""

    def __init__(self, n_vocab, tokens):
        self.bits = np.zeros(-(-n_vocab // 32) * 32, bool)
        self.bits[tokens] = True
        self.accepted = []

    def words(self):
        return np.packbits(self.bits, bitorder="little").view(np.uint32)

    def accept(self, token):
        self.accepted.append(token)


def draws(logits, n=4000, constraint=None, tokenizer=None, **params):
    sampler = Sampler(SamplingParams(**{"seed": 1, **params}), tokenizer, (), constraint)
    row = np.asarray(logits, np.float32)
    row.flags.writeable = False
    return np.array([sampler.next(row).token for _ in range(n)])


def test_temperature_zero_takes_the_likeliest_and_the_lowest_of_equals():
    assert set(draws([0.0, 3.0, 3.0, 1.0], n=10, temperature=0.0)) == {1}
    assert set(draws([0.0, 3.0, 3.0, 1.0], n=10, temperature=-1.0)) == {1}


def test_temperature_zero_comes_after_the_preceding_samplers():
    row = [0.0, 3.0, 2.9, 1.0]
    assert draws(row, n=3, temperature=0.0, presence_penalty=0.5).tolist() == [1, 2, 1]
    # Narrowed first, so that the penalty has only the likeliest left to lower.
    order = ["top_k", "penalties", "temperature"]
    assert set(draws(row, n=9, temperature=0.0, presence_penalty=9.0, top_k=1, samplers=order)) == {1}
    assert set(draws(row, n=9, temperature=0.0, xtc_probability=1.0, xtc_threshold=0.2)) == {2}


def test_frequencies_follow_the_softmax_at_the_temperature():
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    counts = np.bincount(draws(logits, temperature=0.5, **OPEN), minlength=4) / 4000
    expected = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum()
    np.testing.assert_allclose(counts, expected, atol=0.03)


def test_sampler_order_matters():
    row = np.log([0.5, 0.3, 0.2])
    cold_first = {"samplers": ["temperature", "top_p"], "temperature": 0.2, "top_p": 0.6, "top_k": 0, "min_p": 0.0}
    assert set(draws(row, n=200, **cold_first)) == {0}
    assert set(draws(row, n=200, **{**cold_first, "samplers": ["top_p", "temperature"]})) == {0, 1}


def test_same_seed_draws_the_same_tokens():
    logits = np.zeros(1000)
    first, again, other = (draws(logits, n=20, seed=s, **OPEN) for s in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_each_of_n_answers_has_its_own_seed(monkeypatch):
    params = SamplingParams(seed=2**32 - 1, n=2)
    assert [Sampler(params, index=i).seed for i in range(2)] == [2**32 - 1, 0]
    monkeypatch.setattr("woolly.sampling.seeds.randbits", secrets.randbits)  # tests draw one seed otherwise
    assert Sampler(SamplingParams()).seed != Sampler(SamplingParams()).seed


def test_uniform_numbers_match_std_mt19937():
    # The first outputs of std::mt19937(5489) are 3499211612 and 581869302: the low half comes first.
    assert MersenneTwister(5489).uniform64() == (3499211612 + 581869302 * 2**32) / 2**64
    assert MersenneTwister(5489).uniform32() == np.float32(3499211612) / np.float32(2**32)
    random = MersenneTwister(5489)
    for _ in range(4999):
        random.uniform64()
    # The standard names the 10000th output: 4123659995.
    assert int(random.uniform64() * 2**64) >> 32 == pytest.approx(4123659995, abs=1)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_has_the_surprise_of_tau(version):
    row = (np.random.RandomState(0).standard_normal(500) * 2).astype(np.float32)
    p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    values = {"mirostat": version, "temperature": 1.0}
    mean = [-np.log2(p[draws(row, n=1500, mirostat_tau=tau, **values)]).mean() for tau in (0.0, 1.0, 3.0, 5.0, 20.0)]
    assert mean == sorted(mean)
    # Nothing surprising is left at 0, and nothing is cut off at 20.
    assert mean[0] < -np.log2(p.max()) + 0.1
    assert mean[-1] == pytest.approx(-(p * np.log2(p)).sum(), abs=0.2)


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60),
    st.fixed_dictionaries(
        {},
        optional={
            "top_k": st.integers(0, 70),
            "top_p": st.floats(0, 1),
            "min_p": st.floats(0, 1),
            "typical_p": st.floats(0, 1),
            "top_n_sigma": st.floats(-1, 5),
            "xtc_probability": st.floats(0, 1),
            "xtc_threshold": st.floats(0, 1),
            "temperature": st.floats(-1, 5),
            "dynatemp_range": st.floats(0, 3),
            "repeat_penalty": st.floats(0.01, 100),
            "frequency_penalty": st.floats(-5, 5),
            "dry_multiplier": st.floats(0, 5),
            "min_keep": st.integers(0, 70),
            "logit_bias": st.dictionaries(st.just(0), st.floats(-1e38, 1e38)),
        },
    ),
    st.sets(st.integers(0, 59), min_size=1),
)
def test_any_logits_and_samplers_give_an_allowed_token(logits, values, allowed):
    allowed = {token for token in allowed if token < len(logits)} or {0}
    if not values.get("xtc_probability"):
        values.pop("xtc_threshold", None)  # refused where xtc is off
    constraint = Allow(len(logits), list(allowed))
    tokens = draws(logits, n=3, constraint=constraint, **values)
    assert set(tokens) <= allowed
    assert constraint.accepted == tokens.tolist()


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [1.0, np.inf], [-np.inf, -np.inf]])
@pytest.mark.parametrize(
    "values",
    [{"temperature": 0.0}, {}, OPEN, {"mirostat": 2}, {"top_n_sigma": 1.0}, {"custom_sampler": lambda ids, row: 0}],
)
def test_non_finite_logits_are_an_error(logits, values):
    with pytest.raises(ModelError, match="not finite"):
        draws(logits, n=1, **values)


def test_logit_bias_applies_to_ids_and_texts(tokenizer):
    row = np.zeros(tokenizer.n_vocab)
    a, b = tokenizer.encode("ab", add_special=False)
    assert set(draws(row, n=20, tokenizer=tokenizer, logit_bias={5: 50.0})) == {5}
    assert set(draws(row, n=200, tokenizer=tokenizer, logit_bias={"ab": 50.0})) == {a, b}
    assert set(draws(row, n=20, tokenizer=tokenizer, logit_bias={"ab": 50.0, a: False})) == {b}
    # What is named twice adds up.
    assert set(draws(row, n=20, tokenizer=tokenizer, logit_bias={"ab": 50.0, b: 50.0})) == {b}


@pytest.mark.parametrize("values", [{"logit_bias": {320: 1.0}}, {"stop_token_ids": [320]}])
def test_id_outside_the_vocabulary_is_rejected(tokenizer, values):
    with pytest.raises(RequestError, match=f"^token 320 of {next(iter(values))} .* from 0 to 319"):
        Sampler(SamplingParams(**values), tokenizer)


def test_bias_that_bans_everything_is_a_request_error():
    with pytest.raises(RequestError, match="no token is allowed"):
        draws([0.0, 1.0], n=1, logit_bias={0: False, 1: False})


def test_end_tokens_wait_for_min_tokens_and_never_come_with_ignore_eos(tokenizer):
    (end,) = tokenizer.stop_ids
    row = np.zeros(tokenizer.n_vocab)
    row[[end, 7]] = 100.0, 90.0
    greedy = {"tokenizer": tokenizer, "temperature": 0.0}
    assert draws(row, n=3, **greedy).tolist() == [end] * 3
    assert draws(row, n=5, min_tokens=3, **greedy).tolist() == [7, 7, 7, end, end]
    assert draws(row, n=4, min_tokens=2, stop_token_ids=[7], **greedy).tolist() == [0, 0, end, end]
    assert draws(row, n=5, ignore_eos=True, **greedy).tolist() == [7] * 5
    assert draws(row, n=2, ignore_eos=True, stop_token_ids=[7], **greedy).tolist() == [7] * 2


def test_prompt_counts_for_the_penalties():
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=5.0, repeat_last_n=2), None, [1, 0, 2])
    row = np.array([2.0, 3.0, 2.5], np.float32)
    assert [sampler.next(row).token for _ in range(3)] == [1, 0, 2]


def test_processors_see_the_tokens_so_far_and_run_in_order():
    seen = []

    def first(ids, logits):
        seen.append(list(ids))
        logits[0] = 99.0  # in place

    def second(ids, logits):
        return np.where(logits == 99.0, -1.0, logits)  # float64 is taken too

    sampler = Sampler(SamplingParams(temperature=0, logits_processors=[first, second]), None, [3])
    row = np.array([0.0, 1.0, 2.0, 0.5], np.float32)
    assert [sampler.next(row).token for _ in range(2)] == [2, 2]
    assert seen == [[3], [3, 2]]
    assert row.tolist() == [0.0, 1.0, 2.0, 0.5]


def test_custom_sampler_chooses_among_allowed_tokens():
    seen = []

    def lowest(ids, logits):
        seen.append((list(ids), logits.tolist()))
        logits[:] = 0.0  # its own copy
        return np.int64(1)

    row = np.array([3.0, 2.0, 1.0], np.float32)
    constraint = Allow(3, [0, 1])
    sampler = Sampler(SamplingParams(custom_sampler=lowest), None, [2], constraint)
    assert [sampler.next(row).token for _ in range(2)] == [1, 1]
    assert seen == [([2], [3.0, 2.0, -np.inf]), ([2, 1], [3.0, 2.0, -np.inf])]
    assert row.tolist() == [3.0, 2.0, 1.0]
    assert constraint.accepted == [1, 1]


def broken(ids, logits):
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"logits_processors": [broken]}, "broken of logits_processors raised ZeroDivisionError: oh"),
        ({"custom_sampler": broken}, "broken of custom_sampler raised ZeroDivisionError: oh"),
        (
            {"logits_processors": [lambda ids, row: row[:1]]},
            r".*an array of shape \(1,\) and type float32; expected None or",
        ),
        ({"logits_processors": [lambda ids, row: "no"]}, ".* returned 'no'; expected None or"),
        ({"logits_processors": [lambda ids, row: row * np.nan]}, "logits_processors returned NaN"),
        ({"custom_sampler": lambda ids, row: 3}, ".* returned 3; expected a token id from 0 to 2"),
        ({"custom_sampler": lambda ids, row: None}, ".* returned None; expected a token id"),
        ({"custom_sampler": lambda ids, row: 2, "logit_bias": {2: False}}, ".* returned token 2, which is banned"),
    ],
)
def test_failing_callback_is_named(values, sentence):
    with pytest.raises(CallbackError, match=f"^{sentence}") as caught:
        draws([1.0, 2.0, 3.0], n=1, **values)
    if "raised" in sentence:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("values", [{"logit_bias": {2**31 - 1: 1.0}}, {"stop_token_ids": (10**30,)}])
def test_ids_beyond_any_vocabulary_are_rejected(values, tokenizer):
    with pytest.raises(RequestError, match="expected an id from 0"):
        Sampler(SamplingParams(**values), tokenizer, [1])


def test_bias_of_an_id_beyond_31_bits_is_rejected():
    with pytest.raises(RequestError, match="expected a token id from 0 to 2147483647 or a string"):
        SamplingParams(logit_bias={2**31: 1.0})
