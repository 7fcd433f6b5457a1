"""Every op, type, shape and kernel level of the case table: right, and the same bits at every level."""

import platform
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.arithmetic import fused_multiply_add, linear, multiply_then_add
from tests.cases.attention import FOUR_BITS
from tests.cases.compressed_attention import COMPRESSIONS
from tests.cases.indexer import CHOICES
from tests.cases.ops import N_TOKENS, expected, run
from tests.cases.running import RUNNING
from tests.cases.scans import ALL
from tests.cases.weights import QUANTIZED, TYPES, Raw, random_weight
from woolly import _native
from woolly.plan import OPS
from woolly.plan.passes import fuse, fuse_attention, merge_linears
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.cpu import program as cpu

CASES = ALL | FOUR_BITS | CHOICES | COMPRESSIONS | RUNNING
LEVELS = _native.kernel_levels()
# Scalar code has no fma on x86-64: there it rounds twice where all other levels round once.
ODD_ONES = {"scalar"} if platform.machine() in {"x86_64", "AMD64"} else set()
BEST = next(level for level in LEVELS if level not in ODD_ONES or len(LEVELS) == 1)
# Held against the reference. All other levels are held against the best one, bit for bit, by the second test.
ROOTS = [level for level in LEVELS if level == BEST or level in ODD_ONES]

PLAIN_LINEARS = [name for name, case in CASES.items() if name.startswith("linears-") and name.count("-") == 2]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each case's file and what is expected of it, made once."""
    made = {}

    def get(name):
        if name not in made:
            file = CASES[name].open(tmp_path_factory.mktemp("case"))
            made[name] = file, *expected(CASES[name], file)
        return made[name]

    yield get
    for file, *_ in made.values():
        file.close()


def native(case, file, level, threads=2):
    options = Options(threads=threads, level=level, kv_type=case.kv_type)
    return run(case, CpuBackend().compile(case.plan(file), file.tensors, options))


@pytest.fixture(scope="module")
def results(files):
    """Results of three threads with an ISA, computed once for all tests of a case."""
    found = {}

    def get(name, level):
        if (name, level) not in found:
            found[name, level] = native(CASES[name], files(name)[0], level, threads=3)
        return found[name, level]

    return get


@pytest.mark.parametrize("level", ROOTS)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_within_its_bound_of_the_reference(name, level, files, results):
    case = CASES[name]
    _, want, bound = files(name)
    got = results(name, level)
    assert got.shape == want.shape
    assert np.isfinite(want).all()
    if case.check == "exact":
        np.testing.assert_array_equal(got, want)
        return
    error = np.abs(got.astype(np.float64) - want)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: {got[worst]}, expected {want[worst]} within {bound[worst]}"


@pytest.mark.parametrize("name", CASES)
def test_every_isa_and_thread_count_gives_the_same_bits(name, files, results):
    file, *_ = files(name)
    others = [level for level in LEVELS if level != BEST and level not in ODD_ONES]
    want = results(name, BEST)
    for level, threads in [(BEST, 1), *((level, 2) for level in others)]:
        np.testing.assert_array_equal(native(CASES[name], file, level, threads).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("level", ROOTS)
@pytest.mark.parametrize("name", [name for name in PLAIN_LINEARS if GGMLType[name.split("-")[1]] in QUANTIZED])
def test_quantized_linears_are_integer_dots_and_one_fma_per_block(name, level, results):
    case = CASES[name]
    tensors = case.tensors()
    tokens = np.concatenate([batch.tokens for batch in case.batches()])
    fma = multiply_then_add if level in ODD_ONES else fused_multiply_add
    want = linear(tensors["x.weight"].values()[tokens], tensors["w.weight"], fma)
    np.testing.assert_array_equal(results(name, level), want)


@pytest.mark.parametrize("level", ROOTS)
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.op in ("linears", "moe") or "norms" in name]
)
def test_fused_steps_match_the_plain_ones(name, level, files, results, monkeypatch):
    case = CASES[name]

    def least(plan, passes):  # what native code needs: store and attend, linears for linear
        for one_pass in (fuse_attention, merge_linears):
            plan = one_pass(plan)
        return plan

    file, *_ = files(name)
    fused = results(name, level)
    monkeypatch.setattr(cpu, "fuse", least)
    np.testing.assert_array_equal(fused, native(case, file, level))


def test_table_has_cases_for_exactly_the_native_ops(files):
    # linear, attention and choose are plain ops that the passes always replace.
    # tests/engine/test_adapters.py and test_mtp.py prove the scales of "add_lora" and the rows of "hidden".
    # What it gives to ops of towers is in test_tower_ops.py, and the matrices of rows are in test_linear_id.py.
    elsewhere = {
        "store",
        "add_lora",
        "hidden",
        "linear_id",
        "input",
        "embedding_bag",
        "merge_patches",
        "scatter_rows",
        "conv1d",
        "gather_conv1d",
        "cumulative_norm",
    }
    assert {case.op for case in CASES.values()} | elsewhere == set(OPS) - {"linear", "attention", "indexer"}
    for name, case in CASES.items():
        assert fuse(case.plan(files(name)[0])).steps[-1].op == case.op, name


def test_table_has_every_type():
    for op in ("embed", "linears"):
        names = [name for name, case in CASES.items() if case.op == op]
        for type in TYPES:
            assert any(name.startswith(f"{op}-{type.name}-") for name in names)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_dequantized_rows_match_numpy(type):
    case = next(case for name, case in CASES.items() if name.startswith(f"embed-{type.name}-"))
    raw = case.tensors()["table.weight"]
    out = np.empty(raw.shape[1], np.float32)
    for row, want in zip(raw.data.reshape(N_TOKENS, -1), raw.values(), strict=True):
        _native.dequantize_row(int(type), row, raw.shape[1], out)
        np.testing.assert_array_equal(out.view(np.uint32), want.view(np.uint32))


def linears(level, x, weight):
    """x times the weight, by native code alone."""
    program = _native.Program(level, 1, len(x), 4 * len(x) * (x.shape[1] + weight.shape[0] + 32), 128)
    table = program.add_matrix(int(GGMLType.F32), *x.shape, x.view(np.uint8).reshape(-1))
    matrix = program.add_matrix(int(weight.type), *weight.shape, weight.data.reshape(-1))
    first = program.add_value(0, x.shape[1], False)
    second = program.add_value(64 * -(-x.nbytes // 64), weight.shape[0], False)
    program.add_step("embed", [], [first], [("table", [table])], {})
    attributes = {"eps": 0.0, "scale": 1.0, "epilogue": "none", "limit": 0.0}
    program.add_step("linears", [first], [second], [("weight", [matrix])], attributes)
    program.finish()
    rows, none = np.arange(len(x), dtype=np.int32), np.zeros((128, 1), np.float32)
    offsets, pages = np.array([0, len(x)], np.int32), np.zeros((1, 1), np.int32)
    assert program.run(_native.Cache("f32", 1, []), rows, rows, offsets, pages, rows[:0], none, none, 0, 2)
    return program.value(second, len(x)).copy()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("type", QUANTIZED, ids=lambda t: t.name)
def test_subnormal_activations_count_as_zeros_and_nan_propagates(type, level):
    rng = np.random.default_rng(0)
    weight = random_weight(rng, type, 20, 512)
    x = np.ones((6, 512), np.float32)
    x[0] = 0
    x[1] = 1e-38 * rng.standard_normal(512)
    x[2] = 1e-45
    x[3:, 300] = np.nan, np.inf, -np.inf
    y = linears(level, x, weight)
    assert (y[:3] == 0).all()
    assert np.isnan(y[3:]).all()


@pytest.mark.parametrize("n_rows", [1, 4, 16])
@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("level", LEVELS)
def test_nan_weights_affect_only_their_results(level, broken, n_rows):
    values = np.random.default_rng(0).standard_normal((20, 300)).astype(np.float16)
    for row, column in ((2, 5), (3, 6), (7, 299), (17, 0)):
        values[row, column] = broken
    weight = Raw(GGMLType.F16, values.shape, values.view(np.uint8).reshape(-1))
    y = linears(level, np.ones((n_rows, 300), np.float32), weight)
    assert (np.isfinite(y).all(axis=0) == np.isfinite(values).all(axis=1)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n_rows", [3, 21])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_affects_only_rows_that_attend_to_it(name, n_rows, level, tmp_path):
    case = next(case for name, case in CASES.items() if case.op == "attend" and case.kv_type == "f32")
    tensors = dict(case.tensors())
    values = tensors[f"{name}.weight"].values().copy()
    values[n_rows - 2] = np.nan
    tensors[f"{name}.weight"] = Raw(GGMLType.F32, values.shape, values.view(np.uint8).reshape(-1))
    case = replace(case, make=lambda rng: tensors)
    with case.open(tmp_path) as file:
        program = CpuBackend().compile(case.plan(file), file.tensors, Options(level=level, kv_type="f32", threads=2))
        batch = Batch.of([(np.arange(n_rows), 0, [0])])
        broken = np.isnan(program.run(batch, program.new_state(1))).any(axis=1)
    assert broken.tolist() == [row == n_rows - 2 or (row > n_rows - 2 and name != "q") for row in range(n_rows)]
