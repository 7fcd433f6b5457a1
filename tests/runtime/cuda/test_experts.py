"""Mixtures of experts on the emulated GPU: near the reference, and each row the same in every batch."""

import numpy as np
import pytest

from tests.cases.moe import MOES, Experts
from tests.cases.ops import N_TOKENS
from tests.runtime.cuda.emulated import EmulatedDevice, source
from tests.runtime.cuda.harness import BATCH, CaseProgram
from tests.runtime.test_mixtures import CASES, open_case
from tests.runtime.test_moe import plan_of, write
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

T = GGMLType
TOKENS = np.random.RandomState(3).randint(0, N_TOKENS, 12)
# One of each kind; the emulated GPU is slow.
NAMES = (
    *("one-of-8", "all-of-5", "only-one", "three-of-33", "odd-sizes", "tiny", "ties", "equal-sigmoids"),
    *("sigmoid-normalized", "sigmoid-next-to-zero", "sparsemixer", "sparsemixer-near", "sparsemixer-below-0"),
    *("sparsemixer-zeros", "norm-scale-residual", "input-Q8_0", "Q8_0", "norm-residual-Q4_K", "F32-Q4_K-F16"),
    *("Q4_0-Q5_1-Q8_0", "router-F16", "cap", "shared", "shared-Q8_0", "shared-by-all", "ties-Q8_0", "sigmoid-Q8_0"),
    *("150-experts", "300-experts"),
)


@pytest.fixture(scope="module")
def device():
    names = ("pack", "embed", "moe", "moe_route", "moe_rows8", "moe_down_gemv", "moe_mma")
    device = EmulatedDevice(*(source(name) for name in names))
    yield device
    device.close()


def run(program, tokens):
    batch = Batch.of([(tokens, 0, range(3))], [])
    return program.run(batch, program.new_state(3)).copy()


def check(device, plan, file, most, tokens=TOKENS):
    """Many rows are near the reference, and rows alone or with a few others have the same bits."""
    want = run(get_backend("reference").compile(plan, file.tensors, Options()), tokens)
    program = CaseProgram(device, fuse(plan), file.tensors, max_rows=len(tokens))
    got = run(program, tokens)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)
    for rows in (slice(1), slice(2), slice(len(tokens) - 3, None), slice(8), slice(9)):
        np.testing.assert_array_equal(run(program, tokens[rows]).view(np.uint32), got[rows].view(np.uint32))


def mixture(folder, experts):
    file = write(folder / "moe.gguf", experts.make(np.random.default_rng(5), N_TOKENS))
    return file, plan_of(file, experts.build)


@pytest.mark.parametrize("name", NAMES)
def test_mixture_is_close_to_the_reference(name, device, tmp_path):
    file, plan = mixture(tmp_path, MOES[name])
    with file:
        # Halves have 11 bits; random weights of Q4_K cancel each other more than those of a model.
        check(device, plan, file, 1e-5 if all(type == T.F32 for type in MOES[name].types) else 2e-3)


@pytest.mark.parametrize("name", CASES)
def test_mixture_variants_are_close_to_the_reference(name, device, tmp_path):
    file, plan = open_case(tmp_path, name, T.Q8_0)
    with file:
        check(device, plan, file, 2e-3)


def test_one_row_without_memory_for_the_sum_over_its_experts(device, tmp_path, monkeypatch):
    launch, launched = device.launch, set()

    def watched(kernel, *rest):
        launched.add(kernel)
        launch(kernel, *rest)

    monkeypatch.setattr(device, "shared_bytes", 48 << 10)
    monkeypatch.setattr(device, "launch", watched)
    file, plan = mixture(tmp_path, Experts(16, 8, (T.F16,) * 3, width=16, ffn=8))
    with file:
        check(device, plan, file, 2e-3)
    assert "moe_rows8_down__f16" in launched and "moe_down_gemv__f16" not in launched


def test_expert_with_more_rows_than_one_block_takes(device, tmp_path):
    experts = Experts(4, 2, (T.Q8_0,) * 3, width=32, ffn=32, logits=(5.0, 1.0, 2.0, 5.5))
    file, plan = mixture(tmp_path, experts)
    with file:
        check(device, plan, file, 2e-3, np.resize(TOKENS, 70))


@pytest.mark.parametrize(("width", "ffn"), [(2304, 32), (4352, 32), (32, 544)], ids=["slices", "tiles", "hidden"])
def test_columns_of_several_tiles(width, ffn, device, tmp_path):
    experts = Experts(3, 2, (T.Q8_0,) * 3, width=width, ffn=ffn, norm=True, residual=True)
    file, plan = mixture(tmp_path, experts)
    with file:
        check(device, plan, file, 2e-3)


def test_rows_are_in_the_order_of_their_experts(device):
    """Input of Hopper's many-row kernels: rows of an expert in f16, aligned to 8."""
    random = np.random.RandomState(7)
    n_rows, n_used, n_experts, n, n_padded, n_stride = 5, 3, 6, 268, 512, 128
    experts = np.sort([random.permutation(n_experts)[:n_used] for _ in range(n_rows)], axis=1).astype(np.int32)
    x = random.randn(n_rows, n).astype(np.float32)
    hidden = random.randn(n_rows * n_used, n).astype(np.float32)
    batch = np.zeros(1, BATCH)
    batch["n_rows"] = n_rows
    sizes = {"members": 4 * n_stride, "places": 4 * experts.size, "items": 16 * 20, "prepared": 2 * n_stride * n_padded}
    sizes |= {"powers": 4 * n_stride, "backs": 4 * n_rows}
    at = {name: device.allocate(n_bytes) for name, n_bytes in sizes.items()}
    given = {"batch": batch, "experts": experts, "x": x, "hidden": hidden, "backs": np.full(n_rows, 0.25, np.float32)}
    for name, array in given.items():
        at[name] = at.get(name) or device.allocate(array.nbytes)
        device.upload(at[name], array)
    args = (at["batch"], 0, at["experts"], n_experts, n_used, 2, 8, at["members"], at["places"], at["items"])
    device.launch("moe_sort", (1,), 1024, 8 * n_experts, args)
    places = np.empty(experts.size, np.int32)
    device.download(at["places"], places)
    for expert in range(n_experts):
        mine = np.sort(places[experts.reshape(-1) == expert])
        assert not len(mine) or (mine[0] % 8 == 0 and (np.diff(mine) == 1).all())
    items = np.empty((20, 4), np.int32)
    device.download(at["items"], items)
    assert items[1 : 1 + items[0, 0], 2].sum() == experts.size
    assert (items[1 : 1 + items[0, 0], 2] <= 2).all()

    def lying(kernel, grid, *args):
        device.launch(kernel, grid, 256, 0, (at["batch"], 0, n_used, at["places"], *args, at["prepared"], at["powers"]))
        prepared, powers = np.empty((n_padded // 64, n_stride, 8, 8), np.float16), np.empty(n_stride, np.float32)
        device.download(at["prepared"], prepared)
        device.download(at["powers"], powers)
        pieces = np.arange(8)[:, None] ^ (places % 8)  # swapped by the number of the place
        rows = prepared[:, places, pieces].transpose(2, 0, 1, 3).reshape(-1, n_padded).astype(np.float32)
        # As place_of has them: mma, the later two of four columns, lane, the odd column; lanes have 64 columns each.
        rows = rows.reshape(-1, n_padded // 256, 16, 2, 4, 2).transpose(0, 1, 4, 2, 3, 5).reshape(-1, n_padded)
        assert not rows[:, n:].any()
        return rows[:, :n] * powers[places][:, None]

    rows = lying("moe_permute", (n_rows,), at["x"], at["backs"], n, n_padded, n_stride)
    np.testing.assert_allclose(rows, np.repeat(x, n_used, axis=0), rtol=1e-3, atol=1e-6)
    rows = lying("moe_permute_hidden", (n_rows,), at["hidden"], n, n_padded, n_stride)
    np.testing.assert_allclose(rows, hidden, rtol=1e-3, atol=1e-6)
    for address in at.values():
        device.free(address)


def test_run_without_rows_launches_nothing(device, tmp_path):
    """Rows of output may be none: then nobody has chosen experts, and no kernel may ask for them."""
    file, plan = mixture(tmp_path, MOES["Q8_0"])
    with file:
        program = CaseProgram(device, fuse(plan), file.tensors, max_rows=70)
    for launch in program.emitter.launches[-1]:
        assert launch.dimensions(0, 0) is None, launch.kernel
