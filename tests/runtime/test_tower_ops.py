"""Ops that read what a batch brings of images: the reference means what it says, and native code agrees."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from woolly.errors import PlanError
from woolly.gguf import MemoryMap, Tensor
from woolly.plan import Rope, Step, Tracer, Value, rope_axes, rope_frequencies
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

RANDOM = np.random.RandomState(5)
WIDTH, TABLE = 8, 5


def tensor(name, *shape):
    array = RANDOM.standard_normal(shape).astype(np.float32)
    return Tensor(name, GGMLType.F32, shape, 0, MemoryMap(name, array))


TENSORS = {
    "at.weight": tensor("at.weight", TABLE, WIDTH),
    "token_embd.weight": tensor("token_embd.weight", 11, WIDTH),
    "near.weight": tensor("near.weight", WIDTH, 5),
    "near.bias": tensor("near.bias", WIDTH),
    "half.weight": tensor("half.weight", WIDTH // 2),
    "far.weight": tensor("far.weight", 32, 2),
}


def program(build, backend, **options):
    """A plan of given rows and what `build` makes of them; without the table if it does not read it."""
    tracer = Tracer("case", TENSORS)
    tracer.skip("at", "token_embd", "near", "half", "far")
    tracer.output(build(tracer, tracer.input(width=WIDTH)))
    return get_backend(backend).compile(tracer.plan(), TENSORS, Options(**options))


def tower_batch(*lengths, outputs=None, **more):
    """A batch of whole texts with rows of their own."""
    page, sequences = 0, []
    for n in lengths:
        sequences.append(([0] * n, 0, list(range(page, page + 4))))
        page += 4
    rows = np.random.RandomState(1).standard_normal((sum(lengths), WIDTH)).astype(np.float32)
    batch = Batch.of(sequences, range(sum(lengths)) if outputs is None else outputs)
    return replace(batch, hidden=rows, **more)


def run(one, batch):
    return one.run(batch, one.new_state(16)).copy()


def both(build, batch):
    """Result of the reference, after a check that native code gives the same."""
    want = run(program(build, "reference"), batch)
    for threads in (1, 3):
        np.testing.assert_array_equal(run(program(build, "cpu", threads=threads), batch), want)
    return want


def test_given_rows_are_those_of_the_batch():
    batch = tower_batch(3, 2)
    np.testing.assert_array_equal(both(lambda p, x: p.output_rows(x), batch), batch.hidden)


def test_blend_adds_weighted_rows_of_a_table():
    gather_rows = np.array([[0, 3, -1], [4, -1, 2], [-1, -1, -1]], np.int32)
    gather_weights = np.array([[1, 0.5, 9], [1, 9, -2], [9, 9, 9]], np.float32)
    batch, table = (
        tower_batch(3, gather_rows=gather_rows, gather_weights=gather_weights),
        TENSORS["at.weight"].dequantize(),
    )
    got = both(lambda p, x: p.output_rows(p.embedding_bag(x, "at", taps=3)), batch)
    want = batch.hidden.copy()
    want[0] += table[0] + 0.5 * table[3]
    want[1] += table[4] - 2 * table[2]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    only = both(lambda p, x: p.output_rows(p.embedding_bag(x, "at", first=2)), batch)
    np.testing.assert_allclose(only[1], batch.hidden[1] - 2 * table[2], rtol=1e-6)


@pytest.mark.parametrize("kind", ["concat", "interleave", "mean"])
def test_fold_merges_rows(kind):
    batch = tower_batch(6, outputs=[0, 1, 3])
    got = both(lambda p, x: p.merge_patches(x, rows=3, kind=kind), batch)
    groups = [batch.hidden[row : row + 3] for row in (0, 1, 3)]
    want = {
        "concat": [g.reshape(-1) for g in groups],
        "interleave": [g.T.reshape(-1) for g in groups],
        "mean": [g.mean(axis=0) for g in groups],
    }[kind]
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("before", "act"), [(2, "silu"), (4, ""), (0, "")])
def test_conv_around_filters_rows_of_each_text(before, act):
    batch, filters = tower_batch(7, 1, 3), TENSORS["near.weight"].dequantize()
    build = lambda p, x: p.output_rows(p.conv1d(x, "near", kernel=5, before=before, act=act))  # noqa: E731
    want, ends = np.tile(TENSORS["near.bias"].dequantize().astype(np.float64), (11, 1)), (0, 7, 8, 11)
    for first, last in pairwise(ends):
        for row in range(first, last):
            for k in range(5):
                if first <= row + k - before < last:
                    want[row] += filters[:, k] * batch.hidden[row + k - before]
    want = want / (1 + np.exp(-want)) if act else want
    alone = replace(tower_batch(1), hidden=batch.hidden[7:8])
    for backend, threads in (("reference", None), ("cpu", 1), ("cpu", 3)):
        one = program(build, backend, threads=threads)
        got = run(one, batch)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(run(one, alone), got[7:8])


def test_invalid_conv_around_is_rejected():
    for kernel, before, message in ((5, 5, "begins 5 rows before"), (4, 1, "expected .8, 4")):
        with pytest.raises(PlanError, match=message):
            program(lambda p, x, k=kernel, b=before: p.conv1d(x, "near", kernel=k, before=b), "reference")
    one = program(lambda p, x: p.output_rows(p.conv1d(x, "near", kernel=5, before=2)), "cpu", threads=1)
    later = replace(Batch.of([([0] * 2, 3, [0])], range(2)), hidden=np.zeros((2, WIDTH), np.float32))
    with pytest.raises(ValueError, match="a text must be whole in one batch"):
        run(one, later)


def test_conv_at_reads_the_named_rows_of_the_same_text():
    batch, random = tower_batch(9, 1, 40), np.random.default_rng(3)
    weight = TENSORS["near.weight"].dequantize()
    lengths, starts = np.repeat([9, 1, 40], [9, 1, 40]), np.repeat([0, 9, 10], [9, 1, 40])
    gather_rows = random.integers(-1, lengths[:, None], (50, 7)).astype(np.int32)
    wanted, gather_weights = np.array([3, 9, 20, 49]), np.ones(gather_rows.shape, np.float32)
    batch = replace(batch, gather_rows=gather_rows, gather_weights=gather_weights, output_rows=wanted)
    want = np.zeros((50, WIDTH))
    for row in range(50):
        for k, at in enumerate(gather_rows[row, 2:]):
            want[row] += weight[:, k] * batch.hidden[starts[row] + at] * (at >= 0)
    alone = replace(
        tower_batch(40),
        hidden=batch.hidden[10:],
        gather_rows=gather_rows[10:],
        gather_weights=batch.gather_weights[10:],
    )
    every = lambda p, x: p.output_rows(p.gather_conv1d(x, "near", first=2, taps=5))  # noqa: E731
    some = lambda p, x: p.gather_conv1d(x, "near", first=2, taps=5, is_wanted=True)  # noqa: E731
    results = []
    for backend, threads in (("reference", None), ("cpu", 1), ("cpu", 3)):
        one, other = (program(build, backend, threads=threads) for build in (every, some))
        results.append(run(other, batch))
        np.testing.assert_allclose(results[-1], want[wanted], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(run(one, batch), results[-1])
        np.testing.assert_array_equal(run(other, replace(alone, output_rows=np.array([10, 39]))), results[-1][2:])
    np.testing.assert_array_equal(results[1], results[2])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_invalid_conv_at_is_rejected(backend):
    with pytest.raises(PlanError, match=r"near\.weight has shape \(8, 5\), expected \(8, 4\)"):
        program(lambda p, x: p.gather_conv1d(x, "near", first=0, taps=4), backend)
    with pytest.raises(PlanError, match="gather_conv1d got 5 places from 0 on of output rows"):
        program(lambda p, x: p.gather_conv1d(p.output_rows(x), "near", first=0, taps=5), backend)
    one = program(lambda p, x: p.output_rows(p.gather_conv1d(x, "near", first=0, taps=5)), backend, threads=1)
    with pytest.raises(ValueError, match="does not name the rows of a filter"):
        run(one, tower_batch(3))
    for wrong in (3, -2):
        gather_rows = np.full((5, 5), wrong, np.int32)
        outside = replace(tower_batch(3, 2), gather_rows=gather_rows, gather_weights=np.ones((5, 5), np.float32))
        with pytest.raises(ValueError, match="a filter reads a row outside its text"):
            run(one, outside)


def test_running_norm_uses_all_previous_rows_of_a_text():
    batch, weight = tower_batch(9, 1, 40), np.tile(TENSORS["half.weight"].dequantize(), 2)
    batch.hidden[10:] = 3 * batch.hidden[10:] + 100  # far from 0: a sum of squares of f32 would lose the deviation
    build = lambda p, x: p.output_rows(p.cumulative_norm(x, "half", eps=1e-3))  # noqa: E731
    want = np.zeros((50, WIDTH))
    for first, last in pairwise((0, 9, 10, 50)):
        square = 0.0
        for row in range(first, last):
            past = batch.hidden[first : row + 1].astype(np.float64)
            off = past[-1] - past.mean()
            square += (off**2).sum()
            want[row] = off / np.sqrt(square / past.size + 1e-3) * weight
    alone = replace(tower_batch(40), hidden=batch.hidden[10:])
    results = []
    for backend, threads in (("reference", None), ("cpu", 1), ("cpu", 3)):
        one = program(build, backend, threads=threads)
        results.append(run(one, batch))
        np.testing.assert_allclose(results[-1], want, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(run(one, alone), results[-1][10:])
    np.testing.assert_array_equal(results[1], results[2])


def test_invalid_running_norm_is_rejected():
    three = lambda p, x: p.cumulative_norm(p.slice(x, first=0, width=6), "half", eps=1e-3)  # noqa: E731
    with pytest.raises(PlanError, match=r"half\.weight has shape \(4,\), but x is batch x 6"):
        program(three, "reference")
    one = program(lambda p, x: p.output_rows(p.cumulative_norm(x, "half", eps=1e-3)), "cpu", threads=1)
    later = replace(Batch.of([([0] * 2, 3, [0])], range(2)), hidden=np.zeros((2, WIDTH), np.float32))
    with pytest.raises(ValueError, match="a text must be whole in one batch"):
        run(one, later)


def placed(part, adds):
    """A plan whose token rows get rows of embeddings."""
    tracer = Tracer("case", TENSORS)
    tracer.skip("at", "near", "half", "far")
    tracer.output(tracer.output_rows(tracer.embed("token_embd", width=WIDTH)))
    plan = tracer.plan()
    embed, head = plan.steps
    values = (*plan.values, Value(2, WIDTH, "batch"))
    step = Step("scatter_rows", (0,), (2,), (), (("part", part), ("adds", adds)), "case.py:1")
    return replace(plan, steps=(embed, step, replace(head, inputs=(2,))), values=values)


@pytest.mark.parametrize("adds", [0, 1])
def test_place_inserts_rows_among_tokens(adds):
    rows = RANDOM.standard_normal((3, 2 * WIDTH)).astype(np.float32)
    batch = Batch.of([([1, 2, 3], 0, [0]), ([4, 5, 6], 0, [1])], range(6))
    batch = replace(batch, inputs_embeds=rows, embeds_rows=np.array([1, 2, 5], np.int32))
    want = TENSORS["token_embd.weight"].dequantize()[1:7]
    want[[1, 2, 5]] = rows[:, WIDTH:] + (want[[1, 2, 5]] if adds else 0)
    for backend, threads in (("reference", None), ("cpu", 1), ("cpu", 3)):
        one = get_backend(backend).compile(placed(1, adds), TENSORS, Options(threads=threads))
        np.testing.assert_array_equal(run(one, batch), want)
        without = replace(batch, inputs_embeds=None, embeds_rows=None)
        np.testing.assert_array_equal(run(one, without), TENSORS["token_embd.weight"].dequantize()[1:7])


def attending(mask):
    return lambda p, x: p.output_rows(p.attention(x, x, x, head_dim=4, scale=0.5, mask=mask))


def attn_ranges(*spans):
    """(first, end) of each row: spans of positions whose rows see each other."""
    return np.array([span for span in spans for _ in range(*span)], np.int32)


def attention_by_hand(rows, seen):
    """Two heads of 4, row by row; `seen` are the positions that each row sees."""
    out = np.zeros_like(rows, dtype=np.float64)
    for head in (slice(0, 4), slice(4, 8)):
        for r, positions in enumerate(seen):
            past = rows[list(positions), head].astype(np.float64)
            weights = np.exp(past @ rows[r, head] * 0.5)
            out[r, head] = weights @ past / weights.sum()
    return out


SPANS = ((0, 2), (2, 7), (7, 8), (8, 40), (40, 41), (41, 70))


@pytest.mark.parametrize("mask", ["", "block"])
def test_attention_ranges_of_the_batch_are_applied(mask):
    batch = tower_batch(70, attn_ranges=attn_ranges(*SPANS))
    got = {name: run(program(attending(mask), name, **more), batch) for name, more in (
        ("reference", {}), ("cpu", {"threads": 2, "kv_type": "f32"}))}  # fmt: skip
    seen = [range(a if mask == "block" else 0, b) for a, b in SPANS for _ in range(a, b)]
    want = attention_by_hand(batch.hidden, seen)
    for rows in got.values():
        np.testing.assert_allclose(rows, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", ["", "block"])
def test_attention_ranges_give_the_same_bits_in_any_batch(mask):
    one = program(attending(mask), "cpu", threads=3, kv_type="f32")
    alone = tower_batch(70, attn_ranges=attn_ranges(*SPANS))
    want = run(one, alone)
    together = tower_batch(
        5, 70, 9, attn_ranges=np.concatenate([attn_ranges((0, 5)), attn_ranges(*SPANS), attn_ranges((0, 9))])
    )
    together.hidden[5:75] = alone.hidden
    np.testing.assert_array_equal(run(one, together)[5:75], want)


def test_text_continues_after_bidirectional_rows():
    """Blocks of a causal text may come in several runs, each with whole blocks."""
    one = program(attending(""), "cpu", threads=2, kv_type="f32")
    whole = tower_batch(70, attn_ranges=attn_ranges(*SPANS))
    want, state, pages = run(one, whole), one.new_state(16), list(range(4))
    for first, last in ((0, 7), (7, 40), (40, 70)):
        part = Batch.of([([0] * (last - first), first, pages)], range(last - first))
        part = replace(part, hidden=whole.hidden[first:last], attn_ranges=whole.attn_ranges[first:last])
        np.testing.assert_array_equal(one.run(part, state), want[first:last])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_ranges": np.zeros((3, 2), np.int32)}, "what rows see does not fit"),
        ({"attn_ranges": np.array([[0, 3], [0, 3], [0, 3], [3, 5]], np.int32)}, "do not fit its batch"),
        ({"attn_ranges": np.array([[0, 2], [0, 3], [1, 2], [0, 4]], np.int32)}, "do not fit its batch"),
        ({"attn_ranges": np.array([[1, 1], [1, 2], [2, 3], [3, 4]], np.int32)}, "do not fit its batch"),
        (
            {"gather_rows": np.zeros((4, 1), np.int32), "gather_weights": np.zeros((4, 2), np.float32)},
            "gathered rows do not fit",
        ),
        (
            {"gather_rows": np.full((4, 1), TABLE, np.int32), "gather_weights": np.ones((4, 1), np.float32)},
            "outside its table",
        ),
        (
            {"inputs_embeds": np.ones((2, 8), np.float32), "embeds_rows": np.array([1], np.int32)},
            "another number of embeddings",
        ),
        ({"inputs_embeds": np.ones((2, 8), np.float32), "embeds_rows": np.array([2, 1], np.int32)}, "not in order"),
        (
            {"inputs_embeds": np.ones((1, 8), np.float32), "embeds_rows": np.array([4], np.int32)},
            "outside of the batch",
        ),
    ],
)
def test_mismatched_arrays_are_rejected(changes, message):
    def build(p, x):
        return attending("block")(p, p.embedding_bag(x, "at") if "gather_rows" in changes else x)

    one = program(build, "cpu", threads=1)
    batch = replace(tower_batch(4), **({"attn_ranges": attn_ranges((0, 4))} | changes))
    with pytest.raises(ValueError, match=message):
        run(one, batch)


def test_attention_ranges_must_fit_a_window():
    def build(p, x):
        return p.output_rows(p.attention(x, x, x, head_dim=4, scale=0.5, window=4))

    one = program(build, "cpu", threads=1)
    assert run(one, tower_batch(9, attn_ranges=attn_ranges((0, 2), (2, 6), (6, 9)))).shape == (9, WIDTH)
    with pytest.raises(ValueError, match="more than a window of 4"):
        run(one, tower_batch(9, attn_ranges=attn_ranges((0, 2), (2, 7), (7, 9))))


def test_batch_must_have_attention_ranges():
    for backend in ("reference", "cpu"):
        with pytest.raises(ValueError, match="does not say what rows see"):
            run(program(attending("block"), backend), tower_batch(4))
    with pytest.raises(PlanError, match="must not have a window"):
        program(lambda p, x: p.attention(x, x, x, head_dim=4, scale=1.0, mask="block", window=2), "cpu")


def test_rows_that_choose_positions_see_no_others():
    def build(p, x):
        chosen = p.indexer(x, p.slice(x, first=0, width=4), head_dim=4, n=2)
        return p.output_rows(p.attention(x, x, x, head_dim=4, scale=0.5, chosen=chosen))

    for backend in ("reference", "cpu"):
        one = program(build, backend)
        assert run(one, tower_batch(4)).shape == (4, WIDTH)
        with pytest.raises(ValueError, match="rows that choose positions see no others"):
            run(one, tower_batch(4, attn_ranges=attn_ranges((0, 4))))


M_ROPE = Rope(8, 8, 10000.0, "neox", sections=(1, 1, 2))
ROPES = {
    "runs": (M_ROPE, [0, 1, 2, 2]),
    "interleaved": (Rope(16, 16, 10000.0, "neox", sections=(4, 2, 2), order="interleaved"), [0, 1, 2, 0, 1, 2, 0, 0]),
    "each": (Rope(8, 8, 10000.0, "neox", sections=(2, 2), spectrum="each"), [0, 0, 1, 1]),
    "every": (Rope(8, 8, 10000.0, "adjacent", sections=(2, 2), spectrum="every"), [0, 0, 1, 1]),
}


@pytest.mark.parametrize("name", ROPES)
def test_mrope_sections_use_their_own_positions(name):
    rope, axes = ROPES[name]
    assert rope_axes(rope).tolist() == axes
    plain, _ = rope_frequencies(replace(rope, sections=(), spectrum="one"))
    want = {"each": [1.0, 0.01, 1.0, 0.01], "every": [plain[0], plain[2], plain[1], plain[3]]}.get(name, plain)
    np.testing.assert_allclose(rope_frequencies(rope)[0], want)


def test_2d_rope_uses_lines_and_columns():
    rope_positions = np.array([[0, 0, 3, 3, 9], [0, 1, 3, 4, 9], [0, 2, 5, 3, 9]], np.int32)
    batch = tower_batch(5, rope_positions=rope_positions)
    build = lambda p, x: p.output_rows(p.rope(x, M_ROPE))  # noqa: E731
    got = both(build, batch)
    for r in range(5):
        for pair, axis in enumerate([0, 1, 2, 2]):
            angle = rope_positions[axis, r] * 10000.0 ** (-pair / 4)
            a, b = batch.hidden[r, pair], batch.hidden[r, pair + 4]
            want = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
            np.testing.assert_allclose((got[r, pair], got[r, pair + 4]), want, atol=1e-6)
    same = tower_batch(5, rope_positions=np.tile(np.arange(5, dtype=np.int32), (3, 1)))
    np.testing.assert_array_equal(both(build, same), both(build, tower_batch(5)))
    with pytest.raises(ValueError, match="rope positions are outside of"):
        run(program(build, "cpu"), replace(batch, rope_positions=-rope_positions))


def test_bidirectional_rows_have_other_distances_of_one_table():
    def build(p, x):
        for mask in ("all", "since", "all"):
            x = x + p.attention(x, x, x, head_dim=4, scale=0.5, mask=mask, distances="far")
        return p.output_rows(x)

    batch = tower_batch(40, 9)
    want, got = (run(program(build, backend, kv_type="f32"), batch) for backend in ("reference", "cpu"))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
