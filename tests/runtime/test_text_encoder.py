"""The reference's ops of whole texts against plain loops."""

from types import SimpleNamespace

import numpy as np
import pytest

from woolly.plan import Paged, Plan, Step, Value, Weight
from woolly.quant import GGMLType
from woolly.runtime import Batch
from woolly.runtime.reference import REFERENCE_OPS
from woolly.runtime.reference.ops import OpContext, alibi_slopes, distance_buckets
from woolly.runtime.reference.state import ReferenceState

TOKENS = [[5, 6, 7], [8, 9, 5, 9, 4], [3]]
BATCH = Batch.of([(tokens, 0, [i]) for i, tokens in enumerate(TOKENS)])
X = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)


def run(op, weights=None, **attributes):
    arrays = weights or {}
    store = SimpleNamespace(get=arrays.get, rows=lambda name, rows: arrays[name][rows])
    found = tuple(Weight(name, GGMLType.F32, array.shape) for name, array in arrays.items())
    return REFERENCE_OPS[op](
        OpContext(store, BATCH, None), Step(op, (0,), (1,), found, tuple(attributes.items()), ""), X
    )


def test_text_is_pooled_to_its_mean_first_or_last_row():
    texts = np.split(X, [3, 8])
    np.testing.assert_allclose(run("pool", kind="mean"), [text.mean(axis=0) for text in texts], rtol=1e-6)
    np.testing.assert_array_equal(run("pool", kind="first"), [text[0] for text in texts])
    np.testing.assert_array_equal(run("pool", kind="last"), [text[-1] for text in texts])


def test_positions_count_from_the_start_of_each_text():
    table = np.arange(24, dtype=np.float32).reshape(6, 4)
    got = run("embed_position", {"at": table})
    np.testing.assert_array_equal(got - X, (X + table[[0, 1, 2, 0, 1, 2, 3, 4, 0]]) - X)


@pytest.mark.parametrize(("separator", "kinds"), [(0, [0] * 9), (9, [0, 0, 0, 0, 0, 1, 1, 1, 0])])
def test_rows_after_the_first_separator_are_of_the_second_type(separator, kinds):
    table = np.array([[1, 2, 3, 4], [50, 60, 70, 80]], np.float32)
    np.testing.assert_array_equal(run("embed_token_type", {"kinds": table}, separator=separator), X + table[kinds])


def test_alibi_slopes_halve_with_interpolation_beyond_a_power_of_two():
    np.testing.assert_allclose(alibi_slopes(8.0, 8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_allclose(alibi_slopes(8.0, 6), [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])


def test_distances_have_growing_buckets():
    at = [-200, -127, -64, -16, -9, -8, -7, -1, 0, 1, 7, 8, 100, 5000]
    assert distance_buckets(np.array(at), 32).tolist() == [15, 15, 14, 10, 8, 8, 7, 1, 0, 17, 23, 24, 31, 31]


@pytest.mark.parametrize("window", [0, 1, 4, 5])
@pytest.mark.parametrize("alibi", [0.0, 8.0])
def test_rows_see_the_complete_text_or_a_window_around_them(window, alibi):
    rng, rows, heads, head_dim = np.random.default_rng(1), 11, 4, 8
    q, k, v = rng.standard_normal((3, rows, heads * head_dim)).astype(np.float32)
    attributes = {"entry": 0, "head_dim": head_dim, "scale": 0.3, "mask": "all", "window": window, "softcap": 0.0}
    attributes |= {"temper": 0.0, "temper_length": 0, "alibi": alibi, "chosen": 0}
    step = Step("attention", (0, 1, 2), (3,), (), tuple(attributes.items()), "")
    plan = Plan("test", (step,), (Value(0, 1, "batch"),) * 4, (Paged(heads, head_dim, head_dim),))
    context = OpContext(None, Batch.of([([0] * rows, 0, [1])]), ReferenceState(plan, 2))
    got = REFERENCE_OPS["attention"](context, step, q, k, v)
    for r in range(rows):
        seen = [p for p in range(rows) if window == 0 or abs(p - r) <= window // 2]
        for h in range(heads):
            part = slice(h * head_dim, (h + 1) * head_dim)
            fall = 2.0 ** (-alibi * (h + 1) / heads) if alibi else 0.0
            scores = np.array([0.3 * (q[r, part] @ k[p, part]) - fall * abs(p - r) for p in seen])
            shares = np.exp(scores - scores.max())
            np.testing.assert_allclose(got[r, part], shares @ v[seen, part] / shares.sum(), atol=1e-5)
