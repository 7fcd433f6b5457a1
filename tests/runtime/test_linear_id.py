"""Products by the kind of a row: each row has the bits of a plain product with its matrix, in every batch."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.weights import random_weight
from woolly import _native
from woolly.errors import PlanError
from woolly.gguf import MemoryMap, Tensor
from woolly.plan import Tracer
from woolly.plan.ops.table import Load
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

ROWS, COLUMNS, TOKENS = 37, 256, 90
# Matrices of one type, and of two that read their rows in other forms.
PAIRS = {
    "F32": (GGMLType.F32, GGMLType.F32),
    "Q8_0": (GGMLType.Q8_0, GGMLType.Q8_0),
    "Q4_K-F16": (GGMLType.Q4_K, GGMLType.F16),
    "Q8_0-Q6_K": (GGMLType.Q8_0, GGMLType.Q6_K),
}
MIXED = [0] * 5 + [1] * 40 + [0] * 3 + [1] + [0] * 2 + [1] * 30


def tensors(pair):
    rng, out = np.random.default_rng(3), {}
    for name, type in zip(("a.weight", "b.weight"), PAIRS[pair], strict=True):
        raw = random_weight(rng, type, ROWS, COLUMNS)
        data = np.frombuffer(raw.data, np.uint8)
        out[name] = Tensor(name, type, (ROWS, COLUMNS), 0, MemoryMap(name, data))
    table = rng.standard_normal((TOKENS, COLUMNS)).astype(np.float32)
    out["token_embd.weight"] = Tensor("token_embd.weight", GGMLType.F32, table.shape, 0, MemoryMap("x", table))
    return out


def traced(pair, build):
    own = tensors(pair)
    p = Tracer("case", own)
    p.skip("a", "b", "a.weight", "b.weight")
    p.output(p.output_rows(build(p, p.embed("token_embd", width=COLUMNS))))
    return p.plan(), own


def at(p, x):
    return p.linear_id(x, "a", "b", width=ROWS)


def batch_of(gather_rows, first=0, outputs=None):
    n = len(gather_rows)
    batch = Batch.of([(list(range(first, first + n)), 0, [0, 1, 2, 3, 4, 5])], range(n) if outputs is None else outputs)
    own = np.array(gather_rows, np.int32).reshape(-1, 1)
    return replace(batch, gather_rows=own, gather_weights=np.zeros(own.shape, np.float32)) if own.any() else batch


def run(program, batch):
    return program.run(batch, program.new_state(8)).copy()


def compiled(pair, build, backend="cpu", **options):
    plan, own = traced(pair, build)
    return get_backend(backend).compile(plan, own, Options(**options))


@pytest.mark.parametrize("level", _native.kernel_levels())
@pytest.mark.parametrize("pair", PAIRS)
def test_each_row_matches_a_product_with_its_own_matrix(pair, level):
    both = [compiled(pair, lambda p, x, n=n: p.linear(x, n, width=ROWS), threads=1, level=level) for n in "ab"]
    want = np.stack([run(one, batch_of([0] * len(MIXED))) for one in both])[MIXED, np.arange(len(MIXED))]
    for threads in (1, 3):
        program = compiled(pair, at, threads=threads, level=level)
        np.testing.assert_array_equal(run(program, batch_of(MIXED)), want)
        for first, last in ((0, 1), (4, 6), (5, 6), (6, 45), (44, 81)):  # alone, in pieces, and with one kind
            got = run(program, batch_of(MIXED[first:last], first))
            np.testing.assert_array_equal(got, want[first:last])
        wanted = [0, 7, 44, 45, 48, 80]
        np.testing.assert_array_equal(run(program, batch_of(MIXED, outputs=wanted)), want[wanted])
    near = run(compiled(pair, at, "reference"), batch_of(MIXED))
    assert np.linalg.norm(near - want) < 0.02 * np.linalg.norm(near)


def test_reference_uses_the_matrix_that_the_batch_names():
    own = {name: one.dequantize() for name, one in tensors("F32").items()}
    x, program = own["token_embd.weight"], compiled("F32", at, "reference")
    got = run(program, batch_of([0, 1, 1, 0]))
    for row, name in enumerate("abba"):
        np.testing.assert_allclose(got[row], own[f"{name}.weight"] @ x[row], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(run(program, batch_of([0] * 4)), x[:4] @ own["a.weight"].T, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("place", [2, -1])
def test_missing_matrix_is_rejected(backend, place):
    with pytest.raises(ValueError, match="a matrix that the step does not have"):
        run(compiled("F32", at, backend), batch_of([0, place]))


def test_rows_are_picked_before_the_product():
    """The last product of a prompt is computed for its last row alone, with the matrix of that row."""
    plan, _ = traced("Q8_0", at)
    assert [step.op for step in fuse(plan).steps][-2:] == ["output_rows", "linear_id"]


def test_image_matrix_costs_text_nothing():
    plan, _ = traced("Q8_0-Q6_K", at)
    (step,) = (step for step in plan.steps if step.op == "linear_id")
    weight, other = step.weights
    assert (step.used_share(weight), step.used_share(other)) == (1.0, 0.0)
    assert step.row_bytes() == step.cost(plan, Load(1, 0, 3)).n_bytes == weight.n_bytes
    assert step.cost(plan, Load(1, 0, 3)).products == 3 * ROWS * COLUMNS


def test_matrices_of_other_sizes_are_rejected():
    p = Tracer("case", tensors("F32"))
    with pytest.raises(PlanError, match=r"a.weight has shape \(37, 256\), expected \(38, 256\)"):
        p.linear_id(p.embed("token_embd", width=COLUMNS), "a", "b", width=38)
