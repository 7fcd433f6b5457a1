"""Sampling from top logits gives the token of the complete row, however few there are."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.heads import head_of
from woolly.errors import ModelError, RequestError
from woolly.sampling import Sampler, SamplingParams, fast_chain
from woolly.sampling.fast_chain import choose_batch
from woolly.sampling.samplers.top_p import TopP

N_VOCAB = 3000
N_STEPS = 12

# Parameters, and how many tokens of a head they ask for.
PARAMS = {
    "greedy": ({"temperature": 0}, 1),
    "default": ({}, 40),
    "top_k": ({"top_k": 5, "top_p": 1.0, "min_p": 0.0}, 5),
    "top_p": ({"top_k": 0, "min_p": 0.0, "top_p": 0.9}, 256),
    "top_p and keep": ({"top_k": 0, "top_p": 0.3, "min_keep": 30}, 256),
    "min_p": ({"top_k": 0, "top_p": 1.0, "min_p": 0.05}, 256),
    "min_p and keep": ({"top_k": 0, "top_p": 1.0, "min_p": 0.5, "min_keep": 20}, 256),
    "after top_k": ({"typical_p": 0.9, "xtc_probability": 0.5, "dynatemp_range": 0.3}, 40),
    "penalties": ({"repeat_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.1}, 256),
    "greedy penalties": ({"temperature": 0, "repeat_penalty": 1.4}, 256),
    "penalties and min_p": ({"repeat_penalty": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.2}, 256),
    "dry": ({"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ()}, 256),
    "bans": ({"logit_bias": {2: False, 7: -3.5, 11: -1.0}, "temperature": 0}, 4),
    "bans and default": ({"logit_bias": dict.fromkeys(range(0, N_VOCAB, 3), False)}, 256),
    "log-probabilities": ({"logprobs": 100}, 100),
    "those left": ({"logprobs": 3, "post_sampling_probs": True}, 40),
}
WHOLE = (
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 257},
    {"mirostat": 1},
    {"mirostat": 2},
    {"top_n_sigma": 1.0},
    {"samplers": ("temperature", "top_k"), "top_p": 1.0, "min_p": 0.0},
    {"repeat_penalty": 0.9},
    {"presence_penalty": -0.1},
    {"logit_bias": {5: 1.0}},
    {"logprobs": 257},
    {"logits_processors": (lambda ids, logits: None,)},
    {"custom_sampler": lambda ids, logits: 0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
)


def rows(spread):
    """Rows of logits: peaked, flat, with ties, and with impossible tokens."""
    random = np.random.RandomState(int(10 * spread))
    made = random.standard_exponential((N_STEPS, N_VOCAB)).astype(np.float32) * np.float32(spread)
    made[1::4] = np.round(made[1::4])
    made[2::4, 30:] = -np.inf
    made[3::4] -= 9
    return made


def taken(params, given):
    sampler = Sampler(params, prompt=[1, 2, 3, 1, 2])
    return [sampler.next(row) for row in given]


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("name", PARAMS)
def test_top_logits_of_any_length_give_what_the_row_gives(name, spread):
    given, n_top_logits = PARAMS[name]
    params = SamplingParams(seed=7, **given)
    assert Sampler(params).n_top_logits == n_top_logits
    whole = rows(spread)
    want = taken(params, whole)
    for n in (params.logprobs or 1, 45, 104, 256, N_VOCAB):
        got = taken(params, [head_of(row, max(n, params.logprobs or 1)) for row in whole])
        assert [choice.token for choice in got] == [choice.token for choice in want]
        for one, other in zip(got, want, strict=True):
            if one.logprob is not None:
                assert [token for token, _ in one.logprob.top] == [token for token, _ in other.logprob.top]
                assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-12)
                assert [p for _, p in one.logprob.top] == pytest.approx([p for _, p in other.logprob.top], abs=1e-12)


@pytest.mark.parametrize("name", ["greedy", "default", "top_p", "min_p", "penalties", "bans", "log-probabilities"])
def test_requested_top_logits_are_usually_enough(name):
    given, n_top_logits = PARAMS[name]
    asked = []

    def ask():
        asked.append(row)
        return row

    sampler = Sampler(SamplingParams(seed=3, **given), prompt=[1, 2, 3])
    for row in rows(2.0)[::4]:
        sampler.next(replace(head_of(row, n_top_logits), whole=ask))
    # The last token of a share is in doubt now and then.
    assert len(asked) <= (1 if name == "top_p" else 0)


@pytest.mark.parametrize("given", WHOLE, ids=lambda given: "-".join(given))
def test_other_samplers_read_all_logits(given):
    params = SamplingParams(seed=7, **given)
    assert Sampler(params).n_top_logits == 0
    whole = rows(2.0)[:2]
    assert taken(params, [head_of(row, 256) for row in whole]) == taken(params, whole)


@pytest.mark.parametrize("given", [{}, {"temperature": 0}, {"top_k": 0, "top_p": 0.5}])
def test_non_finite_row_is_reported(given):
    params = SamplingParams(seed=1, **given)
    for bad in (np.nan, np.inf):
        row = rows(2.0)[0]
        row[17] = bad
        with pytest.raises(ModelError, match="not finite"):
            taken(params, [head_of(row, 64)])
    with pytest.raises(ModelError, match="not finite"):
        taken(params, [head_of(np.full(N_VOCAB, -np.inf, np.float32), 64)])
    banned = SamplingParams(seed=1, logit_bias=dict.fromkeys(range(N_VOCAB), False), **given)
    for n in (64, N_VOCAB):
        with pytest.raises(RequestError, match="no token is allowed"):
            taken(banned, [head_of(rows(2.0)[0], n)])


def test_min_tokens_ban_applies_to_top_logits_too():
    class Words:
        stop_ids = frozenset({4, 9})
        n_vocab = N_VOCAB

    row = rows(2.0)[0]
    row[[4, 9]] = 50, 49
    for given in (row, head_of(row, 8)):
        sampler = Sampler(SamplingParams(temperature=0, min_tokens=2), Words())
        assert sampler.n_top_logits == 3
        tokens = [sampler.next(given).token for _ in range(3)]
        assert tokens[0] == tokens[1] == row.argsort()[-3] and tokens[2] == 4


def test_probability_near_a_rounding_limit_is_not_decided_by_top_logits():
    """The sum of the row in float32 is another than in float64, and decides which token is the last."""
    row = np.full(200_000, -14.0, np.float32)
    row[:2] = 0.0, -1.0
    weights = np.exp(row)
    total = np.cumsum(weights)[-1]
    for share in (1 / total, (1 + weights[1]) / total):
        for p in (share, np.nextafter(share, np.float32(0)), np.nextafter(share, np.float32(1))):
            params = SamplingParams(seed=1, top_k=0, min_p=0.0, top_p=float(min(p, 0.99)), temperature=5.0)
            assert taken(params, [head_of(row, 256)] * 3) == taken(params, [row] * 3)
    assert TopP(0.5, 0)._of_top_logits(head_of(row, 256)) == 1


def test_bans_outside_the_top_logits_change_their_probabilities():
    row = np.full(N_VOCAB, -8.0, np.float32)
    row[:2] = 0.0, -0.1
    params = SamplingParams(seed=1, top_k=0, min_p=0.0, top_p=0.4, logit_bias=dict.fromkeys(range(1000, 3000), False))
    want = taken(params, [row] * 8)
    assert {choice.token for choice in want} == {0}
    assert taken(params, [head_of(row, 256)] * 8) == want


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"top_k": 1},
        {"top_p": 1.0},
        {"min_p": 0.0},
        {"top_k": 200, "top_p": 0.5, "min_p": 0.3, "min_keep": 9},
        {"top_p": 0.0, "min_keep": 3},
        {"top_p": 1.0, "min_p": 1.0, "temperature": 30.0},
        {"temperature": 1e-38},
        {"top_k": 5000},
    ],
    ids=str,
)
def test_usual_chain_matches_its_steps(given):
    params = SamplingParams(seed=5, **given)
    usual, steps = Sampler(params), Sampler(params)
    assert usual._chain.usual is not None
    steps._chain.usual = None
    for spread in (0.1, 1.0, 4.0):
        for row in rows(spread):
            assert usual.next(row) == steps.next(row)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0},
        {"top_k": 0},
        {"xtc_probability": 0.5},
        {"dynatemp_range": 0.5},
        {"repeat_penalty": 1.1},
        {"samplers": ("top_k", "temperature", "min_p", "top_p")},
        {"logprobs": 1, "post_sampling_probs": True},
    ],
    ids=str,
)
def test_other_chains_run_step_by_step(given):
    assert Sampler(SamplingParams(seed=5, **given))._chain.usual is None


@pytest.mark.parametrize("few", [0, 100])
def test_batched_samplers_choose_like_each_alone(few, monkeypatch):
    monkeypatch.setattr(fast_chain, "_FEW", few)
    random = np.random.RandomState(4)
    asked = [
        {"top_k": int(k), "top_p": float(p), "min_p": float(q), "temperature": float(t), "min_keep": int(keep)}
        for k, p, q, t, keep in zip(
            random.randint(1, 90, 40),
            random.choice([1.0, 0.95, 0.5, 0.0], 40),
            random.choice([0.0, 0.05, 1.0], 40),
            random.choice([0.01, 0.8, 5.0, 1e-38], 40),
            random.choice([0, 3, 50], 40),
            strict=True,
        )
    ]
    asked += [{"temperature": 0}, {"temperature": 0, "repeat_penalty": 1.5}, {"top_k": 300}, {"mirostat": 2}]
    asked += [{"logit_bias": dict.fromkeys(range(0, N_VOCAB, 2), False)}, {"logprobs": 2}]
    asked += [{"logprobs": 2, "post_sampling_probs": True}, {"logit_bias": {2999: 5.0}}, {"logprobs": 257}]
    asked += [{"logits_processors": (lambda ids, logits: -logits,)}]
    together, alone = ([Sampler(SamplingParams(seed=i, **given)) for i, given in enumerate(asked)] for _ in range(2))
    for step in range(4):
        given = np.resize(rows(1.0 + step), (len(asked), N_VOCAB))
        given[5] = -np.inf
        heads = [head_of(row, 64) for row in given]
        ids, logits = np.array([head.ids for head in heads]), np.array([head.logits for head in heads])
        chains = [sampler.chooses_alike(row) for sampler, row in zip(together, ids, strict=True)]
        tokens = choose_batch(chains, ids, logits, False)
        assert [i for i, token in enumerate(tokens) if token is None] == [
            *(i for i, one in enumerate(asked[:40]) if one["top_k"] > 64 or i == 5),
            *(41, 42, 43, 44, 45, 46, 47, 48, 49),
        ]
        for i, (head, token) in enumerate(zip(heads, tokens, strict=True)):
            if i != 5:
                got = together[i].next(head if token is None else token)
                want = alone[i].next(given[i])
                assert got.token == want.token and (got.logprob is None) == (want.logprob is None)
