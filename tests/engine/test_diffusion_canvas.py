"""A canvas fills in masked tokens as the published procedures do, written down here once more."""

from itertools import pairwise

import numpy as np
import pytest

from woolly.engine.diffusion import Canvas, DiffusionSettings, answer_length, read_settings
from woolly.plan import MaskedDiffusion
from woolly.sampling.params import SamplingParams

MASK, N_VOCAB = 9, 12
GREEDY = DiffusionSettings(
    steps=8,
    block_length=8,
    algorithm="confidence",
    alg_temp=0.0,
    cfg_scale=0.0,
    eps=None,
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    seed=3,
)


def settings(**changed):
    return DiffusionSettings(**{**vars(GREEDY), **changed})


def logits(canvas, seed=0):
    """Logits that depend on all tokens, as a model's do."""
    random = np.random.RandomState(seed + int(canvas.tokens.sum()))
    rows = random.standard_normal((len(canvas.tokens) + 1, N_VOCAB)).astype(np.float32)
    rows[:, MASK] = 99  # the likeliest token is the mask, which is never chosen
    return rows


def fill_in(own, *, length=8, shifted=False, prompt=(1, 2, 3)):
    """The canvas, the tokens of each finished block, and the masked positions before each step."""
    canvas = Canvas(prompt, length, MaskedDiffusion(MASK, shifted), own)
    blocks, before = [], []
    while not canvas.is_done:
        before.append(np.flatnonzero(canvas.tokens == MASK).tolist())
        if found := canvas.fill(logits(canvas)[canvas.rows()]):
            blocks.append(found)
    return canvas, blocks, before


def softmax(row):
    e = np.exp(row - row.max())
    return e / e.sum()


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 8, 20])
def test_greedy_confidence_fills_in_like_llada(shifted, steps):
    canvas, blocks, _ = fill_in(settings(steps=steps, block_length=4), shifted=shifted)
    ids, share = [1, 2, 3, *[MASK] * 8], max(1, steps // 2)
    counts = [max(1, steps // 2 + (i < steps % 2)) for i in range(2)]
    for block, n_steps in enumerate(counts if steps > 1 else [share] * 2):
        at, done = range(3 + 4 * block, 7 + 4 * block), 0
        for step in range(n_steps):
            n = 4 // n_steps + (step < 4 % n_steps)
            if n == 0:
                continue
            fake = type("x", (), {"tokens": np.array(ids)})
            rows = logits(fake).astype(np.float64)
            rows[:, MASK] = -np.inf
            open_ = [i for i in at if ids[i] == MASK]
            sure = {i: softmax(rows[i - shifted]).max() for i in open_}
            for i in sorted(open_, key=lambda i: (-sure[i], i))[:n]:
                ids[i] = int(rows[i - shifted].argmax())
                done += 1
        assert done == 4
    assert canvas.tokens.tolist() == ids and blocks == [ids[3:7], ids[7:]]


def test_continuous_time_fills_in_the_published_numbers_of_tokens():
    steps, eps, length = 6, 1e-3, 40
    _, blocks, before = fill_in(settings(steps=steps, eps=eps, algorithm="entropy", block_length=length), length=length)
    left, counts = length, []
    for k in range(steps):
        now, then = 1 - k / steps * (1 - eps), 1 - (k + 1) / steps * (1 - eps)
        n = left if k == steps - 1 else int(left * (1 - then / now))
        left -= n
        counts.append(n)
    found = [len(x) for x in before] + [0]
    assert [a - b for a, b in pairwise(found)] == [n for n in counts if n]
    assert len(blocks) == 1 and len(blocks[0]) == length


@pytest.mark.parametrize(
    ("algorithm", "sure"),
    [
        ("entropy", lambda p: (p * np.log(p + 1e-10)).sum()),
        ("margin", lambda p: np.sort(p)[-1] - np.sort(p)[-2]),
        ("confidence", lambda p: p.max()),
    ],
)
def test_surest_position_is_filled_in_first(algorithm, sure):
    canvas = Canvas([1], 8, MaskedDiffusion(MASK, False), settings(algorithm=algorithm))
    rows = logits(canvas)[canvas.rows()]
    plain = rows.astype(np.float64)
    plain[:, MASK] = -np.inf
    canvas.fill(rows)
    first = max(range(8), key=lambda i: sure(softmax(plain[i])))
    assert np.flatnonzero(canvas.tokens[1:] != MASK).tolist() == [first]


@pytest.mark.parametrize("algorithm", ["origin", "entropy", "margin", "random", "confidence"])
@pytest.mark.parametrize("alg_temp", [0.0, 0.7])
def test_seed_decides_every_draw_and_no_token_stays_masked(algorithm, alg_temp):
    own = settings(algorithm=algorithm, alg_temp=alg_temp, temperature=0.9, top_k=5, top_p=0.9, steps=5)
    canvas, _, before = fill_in(own)
    assert MASK not in canvas.tokens[3:] and canvas.is_done
    assert canvas.tokens.tolist() == fill_in(own)[0].tokens.tolist()
    others = {tuple(fill_in(settings(**vars(own) | {"seed": seed}))[0].tokens) for seed in range(5)}
    assert len(others) > 1
    if algorithm != "origin":  # a draw fills in as many different positions as its step should
        assert [len(x) for x in before] == [8, 6, 4, 2, 1]


def test_top_k_and_top_p_bound_the_drawn_tokens():
    for own, allowed in ((settings(temperature=2.0, top_k=2), 2), (settings(temperature=2.0, top_p=0.3), 3)):
        for seed in range(20):
            canvas = Canvas([1], 8, MaskedDiffusion(MASK, False), settings(**vars(own) | {"seed": seed, "steps": 1}))
            rows = logits(canvas)[canvas.rows()]
            canvas.fill(rows)
            rows[:, MASK] = -np.inf
            ranks = (-rows).argsort(axis=1).argsort(axis=1)
            assert max(ranks[i, token] for i, token in enumerate(canvas.tokens[1:])) < allowed


def test_temperature_draws_from_the_softmax():
    row = np.full((1, N_VOCAB), -9.0, np.float32)
    row[0, :3] = np.log([0.5, 0.3, 0.2])
    counts = np.zeros(N_VOCAB)
    for seed in range(2000):
        own = settings(temperature=1.0, seed=seed, steps=1, block_length=1)
        canvas = Canvas([1], 1, MaskedDiffusion(MASK, False), own)
        canvas.fill(row)
        counts[canvas.tokens[1]] += 1
    np.testing.assert_allclose(counts[:3] / 2000, [0.5, 0.3, 0.2], atol=0.04)


def test_defaults_are_those_of_the_published_procedures():
    llada = read_settings(SamplingParams(), 100, MaskedDiffusion(MASK, False), 1)
    dream = read_settings(SamplingParams(), 100, MaskedDiffusion(MASK, True), 3)
    assert (llada.block_length, llada.algorithm, llada.eps, llada.steps) == (32, "confidence", None, 100)
    assert (dream.block_length, dream.algorithm, dream.eps, dream.seed) == (100, "entropy", 1e-3, 3)
    own = SamplingParams(diffusion_algorithm=2, diffusion_block_length=500, diffusion_eps=0.0, diffusion_steps=7)
    made = read_settings(own, 100, MaskedDiffusion(MASK, False), 1)
    assert (made.algorithm, made.block_length, made.eps, made.steps) == ("margin", 100, 0.0, 7)
    model = MaskedDiffusion(MASK, True)
    assert answer_length(SamplingParams(), 1000, model, 500) == 256
    assert answer_length(SamplingParams(max_tokens=9), 5, model, 500) == 5
