"""Products on the emulated GPU: all kernels of native/cuda/linears but those of Hopper alone."""

import numpy as np
import pytest

import tests.cases.ops
from tests.cases.arithmetic import linear_bound
from tests.cases.ops import CASES, N_PAGES, N_TOKENS, Case
from tests.cases.scans import ALL
from tests.cases.weights import Raw, random_vector, random_weight
from tests.runtime.cuda.cases import check
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.harness import CaseProgram
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch
from woolly.runtime.cuda.ops import linear_rows32

# A case for each kind of tiles, then each way to fuse.
PLAIN = [
    *(
        f"linears-{name}"
        for name in ("F32-5x7", "F16-17x70", "BF16-17x576", "IQ2_XS-17x512", "Q4_K-40x768", "Q6_K-1x256")
    ),
    *(f"linears-{name}-17x96" for name in ("Q4_0", "Q5_1", "Q8_0")),
]
FUSED = [
    *("linears-norm-F16-33", "linears-bias-Q8_0-96", "linears-bias-scale-residual-Q4_K-256", "linears-glu-Q5_1-96"),
    *(
        "linears-bias-scale-residual-F32-70",
        "linears-several-Q4_K-Q6_K-Q8_0-Q4_K",
        "linears-several-IQ4_XS-MXFP4-F32-F32",
    ),
    *("linears-mixed-glu-Q4_K-Q5_K-Q2_K-Q5_K", "per_head_linear-F32", "per_head_linear-Q8_0"),
]


def bound_of_halves(x: np.ndarray, weight: Raw) -> np.ndarray:
    """Activations and weights of halves have 11 bits; matrices of f32 lose nothing."""
    products = np.abs(x.astype(np.float64)) @ np.abs(weight.values().astype(np.float64)).T
    return linear_bound(x, weight) + (0.0 if weight.type == GGMLType.F32 else 2.0**-10) * products


@pytest.mark.parametrize("name", [*PLAIN, *FUSED])
def test_product_is_within_the_f16_error_bound(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tests.cases.ops, "linear_bound", bound_of_halves)
    check(name, tmp_path)


@pytest.mark.parametrize(
    "name", ["linears-bias-scale-residual-Q4_K-256", "linears-glu-Q8_0-96", "per_head_linear-Q4_K"]
)
def test_row_has_the_same_bits_alone_and_among_others(name, tmp_path):
    case: Case = (CASES | ALL)[name]
    device = EmulatedDevice()
    tokens = np.arange(20)
    with case.open(tmp_path) as file:
        program = CaseProgram(device, fuse(case.plan(file)), file.tensors)
        state = program.new_state(N_PAGES, N_PAGES)
        rows = {n: program.run(Batch.of([(tokens[:n], 0, [0])], range(n)), state).copy() for n in (1, 3, 8, 9, 17, 20)}
        last = program.run(Batch.of([(tokens[19:], 0, [0])], [0]), state)
    device.close()
    for n, values in rows.items():
        np.testing.assert_array_equal(values, rows[20][:n])
    np.testing.assert_array_equal(last[0], rows[20][19])


@pytest.mark.parametrize(
    ("name", "has_few"),
    [("linears-norm-F16-33", False), ("linears-glu-F16-33", False), ("linears-norm-Q4_K-256", True)],
)
def test_gpu_with_little_shared_memory_gives_the_same_bits(name, has_few, tmp_path):
    """Many-row kernels take a single row whose tile pipeline does not fit into shared memory."""
    values = {}
    for kilobytes in (99, 227):
        device = EmulatedDevice()
        device.shared_bytes = kilobytes << 10
        with CASES[name].open(tmp_path) as file:
            program = CaseProgram(device, fuse(CASES[name].plan(file)), file.tensors)
            state = program.new_state(N_PAGES, N_PAGES)
            values[kilobytes] = program.run(Batch.of([(np.arange(3), 0, [0])], range(3)), state).copy()
            alone = program.run(Batch.of([(np.arange(1), 0, [0])], [0]), state).copy()
        few = [one for one in program.emitter.launches[-1] if one.kernel.startswith("linear_rows8")]
        assert bool(few) == (has_few or kilobytes == 227)
        np.testing.assert_array_equal(alone[0], values[kilobytes][0])
        device.close()
    np.testing.assert_array_equal(values[99], values[227])


@pytest.mark.parametrize(("type", "n_columns"), [(GGMLType.Q4_K, 4096), (GGMLType.Q4_K, 4352), (GGMLType.Q5_K, 512)])
def test_fused_step_of_two_kinds_equals_separate_steps(type, n_columns, tmp_path):
    """q and k of one kind and v of Q6_K: few rows go through one kernel, many through one for each kind."""

    def make(rng):
        kinds = {"q": (type, 100), "k": (type, 8), "v": (GGMLType.Q6_K, 24)}
        matrices = {f"{name}.weight": random_weight(rng, *kind, n_columns) for name, kind in kinds.items()}
        return {"x.weight": random_weight(rng, GGMLType.F32, N_TOKENS, n_columns)} | matrices

    def build(p):
        x = p.embed("x")
        values = [p.linear(x, name) for name in "qkv"]
        return p.concat(p.concat(values[0], values[1]), values[2])

    case = Case("two kinds", "concat", make, build, "linears")
    device, tensors = EmulatedDevice(), case.tensors()
    with case.open(tmp_path) as file:
        plan = fuse(case.plan(file))
        program = CaseProgram(device, plan, file.tensors)
        assert any("k_q6_k" in launch.kernel for launches in program.emitter.launches for launch in launches)
        state = program.new_state(N_PAGES, N_PAGES)
        rows = {n: program.run(Batch.of([(np.arange(n), 0, [0])], range(n)), state).copy() for n in (1, 3, 9)}
    device.close()
    x = tensors["x.weight"].values()[:9]
    want = np.concatenate([x @ tensors[f"{name}.weight"].values().T for name in "qkv"], axis=1)
    bound = np.concatenate([bound_of_halves(x, tensors[f"{name}.weight"]) for name in "qkv"], axis=1)
    assert (np.abs(rows[9] - want) <= bound).all()
    for n in (1, 3):
        np.testing.assert_array_equal(rows[n], rows[9][:n])


@pytest.mark.parametrize(("type", "n_columns"), [(GGMLType.Q4_K, 4096), (GGMLType.Q8_0, 4640)])
@pytest.mark.parametrize("is_glu", [False, True])
def test_some_row_kernels_match_many_row_kernels(type, n_columns, is_glu, tmp_path, monkeypatch):
    names = ("gate", "up") if is_glu else ("gate",)

    def make(rng):
        tables = {"x": n_columns} if is_glu else {"x": n_columns, "r": 40}
        made = {f"{name}.weight": random_weight(rng, GGMLType.F32, N_TOKENS, n) for name, n in tables.items()}
        for name in names:
            made[f"{name}.weight"] = random_weight(rng, type, 40, n_columns)
            made[f"{name}.bias"] = random_vector(rng, 40)
        return made

    def build(p):
        x = p.embed("x")
        values = [p.linear(x, name) for name in names]
        return p.glu(*values) if is_glu else p.embed("r") + values[0] * 0.5

    case, rows = Case("rows32", "linears", make, build, "linears"), []
    for generations in ((), (80,)):
        monkeypatch.setattr(linear_rows32, "_GENERATIONS", generations)
        device = EmulatedDevice()
        with case.open(tmp_path) as file:
            program = CaseProgram(device, fuse(case.plan(file)), file.tensors)
            kernels = {one.kernel.partition("__")[0] for one in program.emitter.launches[-1]}
            assert ("linear_rows32" in kernels) == bool(generations)
            state = program.new_state(N_PAGES, N_PAGES)
            runs = [Batch.of([(np.arange(n), 0, [0])], range(n)) for n in (9, 16, 21)]
            rows.append(np.concatenate([program.run(run, state) for run in runs]))
        device.close()
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize(("n_processors", "most"), [(132, 32), (16, 16)])
def test_some_row_kernels_follow_few_row_kernels(n_processors, most, tmp_path):
    """Each takes the rows that the one before leaves, and the kernels of many rows take the rest.

    That is sooner for a matrix of many strips for each multiprocessor.
    """

    def make(rng):
        widths = {"x": N_TOKENS, "w": 4096}
        types = {"x": GGMLType.F32, "w": GGMLType.Q4_K}
        return {f"{name}.weight": random_weight(rng, types[name], n, 4096) for name, n in widths.items()}

    case, device = Case("rows32", "linears", make, lambda p: p.linear(p.embed("x"), "w"), "linears"), EmulatedDevice()
    device.kernels_for, device.n_processors = 90, n_processors
    with case.open(tmp_path) as file:
        launches = CaseProgram(device, fuse(case.plan(file)), file.tensors).emitter.launches[-1]
    device.close()
    ranges = [(one.least, one.most, one.kernel) for one in launches if one.dimensions(one.most, one.most) is not None]
    every = [(9, 16, "linear_rows32__q4_k_16_regs"), (17, 32, "linear_rows32__q4_k_32_regs")][: most // 16]
    assert [one for one in ranges if "rows32" in one[2]] == every
    for n in range(1, 100):
        found = [name for least, end, name in ranges if least <= n <= end and "__" in name]
        assert len(found) == 1, (n, found)
    assert all(
        ("linear_prepare" in {name for least, end, name in ranges if least <= n <= end}) == (n > 64)
        for n in (8, 9, 16, 17, 32, 33, 64, 65)
    )


@pytest.mark.parametrize("generation", [80, 90])
@pytest.mark.parametrize("name", ["linears-norm-Q4_K-256", "linears-several-Q4_K-Q6_K-Q8_0-Q4_K", "linears-glu-F16-33"])
def test_every_row_count_has_one_kernel_for_each_matrix(name, generation, tmp_path):
    case, device = CASES[name], EmulatedDevice()
    device.kernels_for, device.n_processors = generation, 132
    with case.open(tmp_path) as file:
        program = CaseProgram(device, fuse(case.plan(file)), file.tensors)
    products = ("linear_gemv", "linear_rows8", "linear_wgmma", "linear_mma")
    launches = [one for one in program.emitter.launches[-1] if one.kernel.startswith(products)]
    # The kernel of one row is there once for each kind of tiles.
    n_kinds = len({one.kernel for one in launches if one.kernel.startswith("linear_rows8") and one.most == 8})
    for n_rows in [*range(1, 300), 512, 528, 529, 1056, 2048]:
        found = [one.kernel for one in launches if one.dimensions(n_rows, n_rows) is not None]
        assert len(found) == n_kinds > 0, (n_rows, found)
    device.close()


@pytest.mark.parametrize(("generation", "kind", "few"), [(80, "F16-33", 1), (90, "Q4_K-256", 1), (90, "F16-33", 2)])
def test_blocks_that_wait_for_others_are_launched_in_groups(generation, kind, few, tmp_path):
    case, device = CASES[f"linears-norm-{kind}"], EmulatedDevice()
    device.kernels_for, device.n_processors = generation, 132
    with case.open(tmp_path) as file:
        program = CaseProgram(device, fuse(case.plan(file)), file.tensors)
    groups = {one.kernel.partition("__")[0]: one.group for one in program.emitter.launches[-1] if "__" in one.kernel}
    assert groups.pop("linear_wgmma", 2) == 2 and groups.pop("linear_rows8") == few and set(groups.values()) <= {1}, (
        groups
    )
    device.close()


SCHEDULES = """
#include "linears/stream_k.cuh"

// How often each slice of each item is computed; a thread is a pair of blocks. What one begins, the next must end.
KERNEL(count_slices)(u32* counts, int n_pairs, int n_items, int n_tiles, int n_splits, u32* n_begun, u32* n_ended) {
    const int pair = threadIdx.x;
    if (pair >= n_pairs) return;
    StreamKScheduler scheduler(pair, n_pairs, n_items, n_tiles, n_splits);
    WorkRange part;
    bool is_first = true;
    while (scheduler.next(part)) {
        const int number = part.number / n_splits;
        for (int i = part.first; i < part.end; i++) atomicAdd(counts + number * scheduler.n_slices + i, 1u);
        if (n_splits == 1 && part.end < scheduler.n_slices) atomicAdd(n_begun + pair, is_first ? 1u : 100u);
        if (n_splits == 1 && part.first > 0) atomicAdd(n_ended + pair, 1u);
        is_first = false;
    }
}
"""


def test_pairs_of_blocks_compute_each_slice_of_each_item_once(tmp_path):
    (tmp_path / "schedules.cu").write_text(SCHEDULES)
    device = EmulatedDevice(tmp_path / "schedules.cu")
    for n_pairs, n_tiles, n_splits in ((66, 50, 1), (66, 5, 2), (57, 16, 1), (66, 5, 1), (8, 1, 1), (1, 3, 1)):
        n_slices = 16 if n_splits > 1 else min(n_tiles, 16)
        for n_items in range(n_splits, 5 * n_pairs + 1, n_splits):
            counts, begun, ended = (np.zeros(n, np.uint32) for n in (n_slices * n_items // n_splits, n_pairs, n_pairs))
            arrays = (counts, begun, ended)
            places = [device.allocate(array.nbytes) for array in arrays]
            for place, array in zip(places, arrays, strict=True):
                device.upload(place, array)
            args = (places[0], n_pairs, n_items, n_tiles, n_splits, *places[1:])
            device.launch("count_slices", (1,), 32 * -(-n_pairs // 32), 0, args)
            for place, array in zip(places, arrays, strict=True):
                device.download(place, array)
                device.free(place)
            assert (counts == 1).all(), (n_pairs, n_items)
            # One at most, before anything else; the next pair ends it, and the last pair begins none.
            assert begun.max() <= 1 and begun[-1] == 0
            np.testing.assert_array_equal(ended[1:], begun[:-1])
    device.close()
