"""The reference gives the same logits however a text is cut into batches, and each op means what the table says."""

import math
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from woolly.errors import PlanError, RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import OPS, Paged, Plan, Rope, Step, Value, Weight
from woolly.plan.ops.basic import Act
from woolly.quant import GGMLType
from woolly.runtime import BACKENDS, Batch, Options, get_backend, pages_for
from woolly.runtime.reference import REFERENCE_OPS
from woolly.runtime.reference.ops import OpContext
from woolly.runtime.reference.state import ReferenceState

IDS = np.random.RandomState(3).randint(0, 264, 80).tolist()
# f32 sums in another order: BLAS takes other kernels for other row counts.
CLOSE = {"rtol": 0, "atol": 2e-5}


def program(name, folder, **options):
    file = open_gguf(write_tiny(FAMILIES[name], folder / "tiny.gguf"))
    return get_backend("reference").compile(trace(file), file.tensors, Options(**options))


def whole(prog):
    return prog.run(Batch.of([(IDS, 0, [0, 1, 2])], range(len(IDS)), slots=[(-1, 0)]), prog.new_state(3, 1))


def test_reference_has_exactly_the_ops_of_the_table():
    assert set(REFERENCE_OPS) == set(OPS)


# 64 layers without norms before them add their roundings up beyond what is close here.
@pytest.mark.parametrize("name", [name for name, tiny in FAMILIES.items() if tiny.n_layers < 64])
def test_chunks_give_the_logits_of_the_complete_prompt(name, tmp_path):
    prog = program(name, tmp_path)
    expected = whole(prog)
    # NumPy rounds a product of many rows in another way than one of few; a state carries the differences on.
    close = {"rtol": 1e-4, "atol": 2e-4} if prog.plan.slots else CLOSE
    # Single tokens at the beginning and over a page's end: each is a whole run. Then chunks that end anywhere.
    for sizes in ([1] * 3 + [27] + [1] * 4, [7, 7, 29, 20, 17], [32, 32, 16]):
        state, parts, first = prog.new_state(5, 2), [], 0
        for i, n in enumerate(sizes):
            tokens, slots = IDS[first : first + n], (-1 if first == 0 else 1 - i % 2, i % 2)
            parts.append(prog.run(Batch.of([(tokens, first, [4, 0, 2])], range(n), slots=[slots]), state))
            first += n
        np.testing.assert_allclose(np.concatenate(parts), expected[:first], err_msg=f"chunks of {sizes}", **close)


def test_sequences_in_one_batch_do_not_see_each_other(tmp_path):
    prog = program("llama", tmp_path)
    alone = [prog.run(Batch.of([(ids, 0, [0, 1])]), prog.new_state(2)) for ids in (IDS[:40], IDS[40:50], IDS[50:])]
    together = prog.run(Batch.of([(IDS[:40], 0, [5, 1]), (IDS[40:50], 0, [2]), (IDS[50:], 0, [0])]), prog.new_state(6))
    np.testing.assert_allclose(together, np.concatenate(alone), **CLOSE)


def test_only_the_wanted_rows_are_returned(tmp_path):
    prog = program("llama", tmp_path)
    some = prog.run(Batch.of([(IDS, 0, [0, 1, 2])], [3, 70]), prog.new_state(3))
    np.testing.assert_allclose(some, whole(prog)[[3, 70]], **CLOSE)


def test_run_in_two_parts_equals_one(tmp_path):
    prog = program("granite", tmp_path)
    expected = whole(prog)
    batch, state = Batch.of([(IDS, 0, [0, 1, 2])], range(len(IDS))), prog.new_state(3)
    hidden = prog.run(batch, state, last=9)
    assert hidden.shape == (len(IDS), prog.plan.values[prog.plan.steps[8].output].width)
    np.testing.assert_array_equal(prog.run(batch, state, first=9), expected)


def test_resumed_run_without_a_previous_part_is_rejected(tmp_path):
    prog = program("llama", tmp_path)
    batch, state = Batch.of([(IDS, 0, [0, 1, 2])]), prog.new_state(3)
    with pytest.raises(PlanError, match="step 5 needs v"):
        prog.run(batch, state, first=5)
    with pytest.raises(PlanError, match="not a part of a plan"):
        prog.run(batch, state, first=3, last=2)


def test_weight_budget_changes_only_memory(tmp_path):
    free, tight = program("qwen3", tmp_path), program("qwen3", tmp_path, weight_memory=60_000)
    np.testing.assert_array_equal(whole(free), whole(tight))
    np.testing.assert_array_equal(whole(free), whole(tight))
    assert free.weight_stats().evictions == 0
    assert free.weight_stats().hits >= free.weight_stats().misses
    stats = tight.weight_stats()
    assert stats.evictions > 0
    assert stats.n_bytes <= 60_000


def test_threads_are_honored_or_rejected(tmp_path):
    np.testing.assert_allclose(whole(program("llama", tmp_path, threads=1)), whole(program("llama", tmp_path)), **CLOSE)
    with pytest.raises(RequestError, match="threads is 0"):
        program("llama", tmp_path, threads=0)


def test_unknown_backend_is_rejected():
    with pytest.raises(RequestError, match=r"backend 'gpu' is unknown; choose auto or one of: .*reference"):
        get_backend("gpu")
    assert get_backend("auto").name in BACKENDS


def attention(*, window=0, softcap=0.0, temper=0.0, alibi=0.0, sinks=None, rows=12, heads=4, kv_heads=2, head_dim=8):
    """One attention step against a plain loop over rows and heads."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((rows, heads * head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, rows, kv_heads * head_dim)).astype(np.float32)
    attributes = {"entry": 0, "mask": "", "head_dim": head_dim, "scale": 0.3, "window": window, "softcap": softcap}
    attributes |= {"temper": temper, "temper_length": 4, "temper_offset": 0, "alibi": alibi, "chosen": 0}
    weights = () if sinks is None else (Weight("sinks.weight", GGMLType.F32, (heads,)),)
    step = Step("attention", (0, 1, 2), (3,), weights, tuple(attributes.items()), "")
    plan = Plan("test", (step,), (Value(0, 1, "batch"),) * 4, (Paged(kv_heads, head_dim, head_dim),))
    batch = Batch.of([([0] * rows, 0, [1])])
    store = SimpleNamespace(get=lambda name: np.array(sinks, np.float32))
    got = REFERENCE_OPS["attention"](OpContext(store, batch, ReferenceState(plan, 2)), step, q, k, v)
    want = np.zeros_like(q)
    for r in range(rows):
        first = max(0, r - window + 1) if window else 0
        for h in range(heads):
            g = h // (heads // kv_heads)
            part = slice(g * head_dim, (g + 1) * head_dim)
            own = slice(h * head_dim, (h + 1) * head_dim)
            scores = k[first : r + 1, part].astype(np.float64) @ q[r, own] * 0.3
            scores *= 1 + temper * math.log(1 + r // 4)
            scores -= 2.0 ** (-alibi * (h + 1) / heads) * (r - np.arange(first, r + 1)) if alibi else 0.0
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            total = weights.sum() + (0 if sinks is None else math.exp(sinks[h] - scores.max()))
            want[r, own] = weights @ v[first : r + 1, part] / total
    return got, want


@pytest.mark.parametrize("window", [0, 1, 5])
@pytest.mark.parametrize("softcap", [0.0, 0.7])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_is_causal_softmax_over_the_window(window, softcap, kv_heads):
    got, want = attention(window=window, softcap=softcap, kv_heads=kv_heads)
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_sinks_take_their_share_and_q_grows_with_its_position():
    np.testing.assert_allclose(*attention(sinks=[0.5, -1.0, 3.0, 0.0]), atol=2e-6)
    np.testing.assert_allclose(*attention(sinks=[0.5, 200.0, 3.0, -200.0], window=5), atol=2e-6)
    np.testing.assert_allclose(*attention(temper=0.7), atol=2e-6)


def test_scores_fall_with_distance():
    np.testing.assert_allclose(*attention(alibi=8.0), atol=2e-6)
    np.testing.assert_allclose(*attention(alibi=4.0, window=5, kv_heads=4), atol=2e-6)


@pytest.mark.parametrize("style", ["adjacent", "neox"])
def test_rope_rotates_only_its_part_and_keeps_norms(style):
    rope = Rope(head_dim=8, n_rot=4, base=100.0, style=style)
    step = Step("rope", (0,), (1,), (), (("rope", rope),), "")
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    batch = Batch.of([([0, 0, 0], 0, [0])])
    y = REFERENCE_OPS["rope"](OpContext(None, batch, None), step, x).reshape(3, 2, 8)
    x = x.reshape(3, 2, 8)
    np.testing.assert_array_equal(y[0], x[0])
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    a, b = (0, 1) if style == "adjacent" else (0, 2)
    angle = 2.0
    np.testing.assert_allclose(y[2, 0, a], x[2, 0, a] * np.cos(angle) - x[2, 0, b] * np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)


@pytest.mark.parametrize(("act", "most"), [("silu", 2e4), ("gelu", 2e4), ("relu", 2e4), ("clamped", 21)])
def test_gates_have_the_right_limits_without_warnings(act, most):
    gate, up = np.array([[-1e4, 0.0, 1e4]], np.float32), np.full((1, 3), 2, np.float32)
    step = Step("glu", (0, 1), (2,), (), (("act", act), ("limit", 0.0)), "")
    got = REFERENCE_OPS["glu"](OpContext(None, None, None), step, gate, up)
    np.testing.assert_allclose(got, [[0, 0, most]], rtol=1e-5)


def one_act(kind, x):
    """The activation of one number, from its definition."""
    return {
        "silu": x / (1 + math.exp(-x)),
        "gelu": 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "gelu_erf": 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
        "gelu_quick": x / (1 + math.exp(-1.702 * x)),
        "exp": math.exp(x),
        "relu": max(x, 0.0),
        "relu2": max(x, 0.0) ** 2,
        "sigmoid": 1 / (1 + math.exp(-x)),
        "softplus": math.log1p(math.exp(x)),
        "tanh": math.tanh(x),
        "root": math.copysign(math.sqrt(max(abs(x), 1e-6)), x) if x else 0.0,
    }[kind]


@pytest.mark.parametrize("kind", get_args(Act))
def test_activations_match_their_names(kind):
    x = np.linspace(-6, 6, 61, dtype=np.float32)[None]
    step = Step("unary", (0,), (1,), (), (("kind", kind),), "")
    got = REFERENCE_OPS["unary"](OpContext(None, None, None), step, x)
    np.testing.assert_allclose(got[0], [one_act(kind, float(one)) for one in x[0]], atol=1e-6, rtol=1e-6)


def test_layer_norm_has_groups_with_their_own_weights():
    x = np.random.default_rng(2).standard_normal((3, 12)).astype(np.float32)
    weight, bias = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
    arrays = {"w.weight": weight, "w.bias": bias}
    weights = tuple(Weight(name, GGMLType.F32, (3, 4)) for name in arrays)
    step = Step("layer_norm", (0,), (1,), weights, (("eps", 0.1), ("group", 4)), "")
    got = REFERENCE_OPS["layer_norm"](OpContext(SimpleNamespace(get=arrays.get), None, None), step, x)
    for r in range(3):
        for g in range(3):
            part = x[r, 4 * g : 4 * g + 4].astype(np.float64)
            want = (part - part.mean()) / np.sqrt(part.var() + 0.1) * weight[g] + bias[g]
            np.testing.assert_allclose(got[r, 4 * g : 4 * g + 4], want, atol=1e-6)


def test_batch_that_exceeds_its_pages_is_rejected():
    with pytest.raises(ValueError, match="1 pages of 32 cannot hold 33 tokens"):
        Batch.of([([0] * 33, 0, [0])])
    with pytest.raises(ValueError, match="at least one"):
        Batch.of([])
    assert pages_for(0) == 0
    assert pages_for(32) == 1
    assert pages_for(33) == 2


def test_uncomputable_type_is_rejected_at_compile(tmp_path):
    weight = Weight("token_embd.weight", GGMLType.Q1_0, (4, 256))
    plan = Plan("test", (Step("embed", (), (0,), (weight,), (), ""),), (Value(0, 256, "batch"),), ())
    with pytest.raises(Exception, match=r"token_embd\.weight.*Q1_0.*not supported yet"):
        get_backend("reference").compile(plan, {}, Options())
