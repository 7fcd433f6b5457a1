"""Products of Hopper alone on the emulated GPU: pairs of blocks, bulk copies and wgmma give the bits of the others."""

import numpy as np
import pytest

from tests.cases.ops import N_PAGES, N_TOKENS, Case
from tests.cases.weights import random_vector, random_weight
from tests.runtime.cuda.emulated import EmulatedDevice, HopperDevice
from tests.runtime.cuda.harness import CaseProgram
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch
from woolly.runtime.cuda.ops import linears

# Blocks of many threads, emulated, take long: each kernel computes in one case of every run.
rare = pytest.mark.rare


def case(n_columns: int, n_rows: int, is_glu: bool = False) -> Case:
    names = ("gate", "up") if is_glu else ("gate",)

    def make(rng):
        tables = {"x": n_columns} if is_glu else {"x": n_columns, "r": n_rows}
        made = {f"{name}.weight": random_weight(rng, GGMLType.F32, N_TOKENS, n) for name, n in tables.items()}
        for name in names:
            made[f"{name}.weight"] = random_weight(rng, GGMLType.Q4_K, n_rows, n_columns)
            made[f"{name}.bias"] = random_vector(rng, n_rows)
        return made

    def build(p):
        x = p.embed("x")
        values = [p.linear(x, name) for name in names]
        return p.glu(*values) if is_glu else p.embed("r") + values[0] * 0.5

    return Case("hopper", "linears", make, build, "linears")


def run(device, made: Case, counts, folder) -> tuple[list[np.ndarray], set[str]]:
    """Values of each count of rows, and the names of the kernels that made them."""
    launched: set[str] = set()
    launch = device.launch

    def watched(kernel, *rest):
        launched.add(kernel)
        launch(kernel, *rest)

    device.launch = watched
    with made.open(folder) as file:
        program = CaseProgram(device, fuse(made.plan(file)), file.tensors, max_rows=max(256, *counts))
        state = program.new_state(N_PAGES, N_PAGES)
        batches = [Batch.of([(np.arange(n) % N_TOKENS, 0, range(24))], range(n)) for n in counts]
        values = [program.run(batch, state).copy() for batch in batches]
    device.close()
    return values, {name for name in launched if name.startswith("linear_")}


@pytest.mark.parametrize(
    ("n_columns", "kernels"),
    [
        (4096, {"linear_rows8__q4_k_regs", "linear_rows32__q4_k_16_regs", "linear_rows32__q4_k_32_regs"}),
        (4352, {"linear_rows8__q4_k", "linear_rows32__q4_k_16"}),
    ],
)
@pytest.mark.parametrize("is_glu", [False, pytest.param(True, marks=rare)])
def test_few_row_kernels_match_many_row_kernels(n_columns, kernels, is_glu, tmp_path):
    made, counts = case(n_columns, 72, is_glu), (3, 16, 21)[: len(kernels)]
    ours, launched = run(HopperDevice(), made, counts, tmp_path)
    assert launched == kernels
    (want,), _ = run(EmulatedDevice(), made, (33,), tmp_path)
    for values in ours:
        np.testing.assert_array_equal(values, want[: len(values)])


@pytest.mark.parametrize(
    ("n_columns", "n_processors", "counts", "kernels"),
    [
        # Slices of one item are dealt to several pairs, and linear_reduce adds them up.
        (2304, 64, (33,), {"linear_wgmma__q4_k_64", "linear_reduce"}),
        # Pairs begin items that others end.
        (768, 6, (65, 200), {"linear_wgmma__q4_k_128", "linear_wgmma__q4_k_160"}),
        # Four blocks hand the sum on.
        (4352, 8, (21, 33), {"linear_splitk__q4_k_32", "linear_splitk__q4_k_64"}),
    ],
)
@pytest.mark.parametrize("is_fused", [pytest.param(False, marks=rare), True])
def test_many_row_kernels_match_those_of_all_generations(
    n_columns, n_processors, counts, kernels, is_fused, tmp_path, monkeypatch
):
    monkeypatch.setattr(linears, "_WIDEST_FROM", 161)
    monkeypatch.setattr(linears, "_MIN_W_BLOCKS", 1 if is_fused else 100)
    made, device = case(n_columns, 300 if n_columns == 768 else 140), HopperDevice()
    device.n_processors = n_processors
    ours, launched = run(device, made, counts, tmp_path)
    prepared = {name for name in launched if "prepare" in name}
    assert launched - prepared == kernels
    assert bool(prepared) == (not is_fused or max(counts) > 64)
    (want,), _ = run(EmulatedDevice(), made, (N_TOKENS,), tmp_path)
    for values in ours:
        np.testing.assert_array_equal(values, want[np.arange(len(values)) % N_TOKENS])


@pytest.mark.parametrize("n_processors", [pytest.param(16, marks=rare), 8])
def test_chain_of_blocks_takes_two_kinds_of_matrices(n_processors, tmp_path, monkeypatch):
    """One team has all matrices one after another, or two have them at once: the bits are those of one row."""
    monkeypatch.setattr(linears, "_MIN_W_BLOCKS", 1)

    def make(rng):
        kinds = {"q": (GGMLType.Q4_K, 140), "k": (GGMLType.Q4_K, 8), "v": (GGMLType.Q6_K, 24)}
        matrices = {f"{name}.weight": random_weight(rng, *kind, 4096) for name, kind in kinds.items()}
        return {"x.weight": random_weight(rng, GGMLType.F32, N_TOKENS, 4096)} | matrices

    def build(p):
        x = p.embed("x")
        values = [p.linear(x, name) for name in "qkv"]
        return p.concat(p.concat(values[0], values[1]), values[2])

    device = HopperDevice()
    device.n_processors = n_processors
    (one, many), launched = run(device, Case("two kinds", "concat", make, build, "linears"), (1, 60), tmp_path)
    assert launched == {"linear_gemv__q4_k_q6_k_k4096", "linear_splitk__q4_k_q6_k_64"}
    np.testing.assert_array_equal(many[0], one[0])
    np.testing.assert_array_equal(many[N_TOKENS:], many[: 60 - N_TOKENS])


PAIRS = """
#include "primitives/wgmma.cuh"

// Each block of a pair writes what the other brings by a copy, and whether any of its threads is the one.
KERNEL_CLUSTER2(32, swap)(const int* x, int* y, int one) {
    DYNAMIC_SHARED(shared);
    const u32 barrier = shared_address(shared + 128);
    if (threadIdx.x == 0) mbarrier_init(barrier, 1), mbarrier_init_fence();
    cluster_sync();
    if (threadIdx.x == 0) mbarrier_expect_tx(barrier, 32);
    if (threadIdx.x == 0)
        bulk_copy_multicast(shared_address(shared + 16 * (blockIdx.x & 1)), x + 4 * blockIdx.x, 16, barrier, 0);
    mbarrier_wait(barrier, 0);
    const int other = (int(blockIdx.x) & 1) ^ 1, any = __syncthreads_or(32 * blockIdx.x + threadIdx.x == one);
    if (threadIdx.x < 4) y[4 * blockIdx.x + threadIdx.x] = reinterpret_cast<int*>(shared)[4 * other + threadIdx.x];
    if (threadIdx.x == 4) y[16 + blockIdx.x] = any;
    cluster_sync();
}
KERNEL(arrives_twice)(int*) {
    DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) mbarrier_init(shared_address(shared), 2), mbarrier_arrive(shared_address(shared));
    if (threadIdx.x == 0) mbarrier_expect_tx(shared_address(shared), 16), mbarrier_arrive(shared_address(shared));
}
KERNEL(waits_for_ever)(int*) {
    DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) mbarrier_init(shared_address(shared), 1);
    __syncthreads();
    mbarrier_wait(shared_address(shared), 0);
}
KERNEL(waits_for_a_later_block)(u32* flag) {
    if (blockIdx.x == 1) store_release(flag, 1);
    while (!load_acquire(flag)) spin_wait();
}
"""


class PairDevice(EmulatedDevice):
    macros = ("WOOLLY_EMULATED=90",)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    source = tmp_path_factory.mktemp("pairs") / "pairs.cu"
    source.write_text(PAIRS)
    device = PairDevice(source)
    yield device
    device.close()


@rare
def test_blocks_of_a_pair_copy_to_each_other(pairs):
    x, out = np.arange(16, dtype=np.int32), np.zeros(20, np.int32)
    there, y = pairs.allocate(64), pairs.allocate(80)
    pairs.upload(there, x)
    pairs.launch("swap", (4,), 32, 256, (there, y, 70), group=2)
    pairs.download(y, out)
    assert out.tolist() == [*range(4, 8), *range(4), *range(12, 16), *range(8, 12), 0, 0, 1, 0]
    with pytest.raises(AssertionError, match="the grid must be a multiple of the cluster"):
        pairs.launch("swap", (3,), 32, 256, (there, y, 70), group=2)


@rare
@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("arrives_twice", r"arrives_twice, block \(0, 0, 0\), thread \(0, 0, 0\): more arrive at a barrier"),
        ("waits_for_ever", r"deadlock in kernel waits_for_ever.* waits at a barrier in shared memory for ever"),
        ("waits_for_a_later_block", r"a block waits for what no block before it stored"),
    ],
)
def test_missing_waits_are_named(pairs, kernel, sentence):
    y = pairs.allocate(16)
    pairs.zero(y, 16)
    with pytest.raises(AssertionError, match=sentence):
        pairs.launch(kernel, (2,), 32, 64, (y,))
