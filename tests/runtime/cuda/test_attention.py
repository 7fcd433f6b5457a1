"""Attention on the emulated GPU: right in every case, and the same bits however rows are put together."""

import os
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.attention import ATTENTIONS, FOUR_BITS, _attention
from tests.cases.ops import N_PAGES, N_TOKENS, Case, _both, _tables, expected
from tests.cases.weights import Raw, random_weight
from tests.runtime.cuda.emulated import EmulatedDevice, source
from tests.runtime.cuda.harness import CaseProgram
from woolly.errors import UnsupportedError
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch
from woolly.runtime.cuda.ops import attention as ops
from woolly.runtime.options import KV_TYPES, KvType

# All cases take minutes: WOOLLY_CUDA_CASES=all python -m pytest tests/runtime/cuda/test_attention.py
QUICK = (
    "attend-16-f32-group1-adjacent",
    "attend-splits-softcap-q8_0",
    "attend-24-v40-q8_0",
    "attend-sinks-window-f32",
    "attend-norms-adjacent",
    "attend-72-f16-filled",
    "attend-together-chunks40",
    "attend-together-alibi-f16",
)
ALL = os.environ.get("WOOLLY_CUDA_CASES") == "all"
CASES = [*ATTENTIONS, *FOUR_BITS] if ALL else [*QUICK, *(name for name in FOUR_BITS if name != "attend-64-q4")]


KINDS = ("few", "prefill", "split", "stream", "decode", "decode_batch", "decode_long", "hadamard")
FILES = ("embed", "store", "attend", *(f"attend_{kind}" for kind in KINDS))


class Attention:
    """A case on the emulated GPU, over one cache."""

    def __init__(self, case, file, n_pages=N_PAGES):
        device = EmulatedDevice(*(source(name) for name in FILES))
        self.program = CaseProgram(device, fuse(case.plan(file)), file.tensors, case.kv_type, 300)
        self.state = self.program.new_state(n_pages)

    def run(self, batch):
        return self.program.run(batch, self.state)


def halves_bound(case, file):
    """Error bound of tensor cores: q, q8_0 cache values and exp weights have 11 bits."""
    step, tables = case.plan(file).steps[-1], case.tensors()
    q, k = (np.linalg.norm(tables[f"{n}.weight"].values().reshape(-1, step.integer("head_dim")), axis=1) for n in "qk")
    score = step.number("scale") * (1 + 6 * step.number("temper")) * q.max() * k.max() * 2.0**-11
    values = tables["v.weight" if "v.weight" in tables else "k.weight"].values()
    return np.expm1(2 * score + 2.0**-10) * np.abs(values).max()


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_within_its_bound_of_the_reference(name, tmp_path):
    case = (ATTENTIONS | FOUR_BITS)[name]
    with case.open(tmp_path) as file:
        want, bound = expected(case, file)
        if case.kv_type != "f32":
            bound = bound + halves_bound(case, file)
        attention = Attention(case, file)
        got = np.concatenate([attention.run(batch) for batch in case.batches()])
    error = np.abs(got.astype(np.float64) - want)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: {got[worst]}, expected {want[worst]} within {bound[worst]}"


def texts(kv_type, window, **options):
    """Rows that see later ones, too, whose scores change with the distance."""

    def build(p):
        q, k, v = p.embed("q"), p.embed("k"), p.embed("v")
        return p.attention(q, k, v, head_dim=16, scale=0.25, mask="all", window=window, **options)

    makes = [_tables(q=96, k=96, v=96)]
    if "distances" in options:
        makes.append(lambda rng: {"distances.weight": random_weight(rng, GGMLType.F32, 32, 6)})
    runs = (((40, 0, (3, 1)),), ((1, 0, (2,)), (170, 0, (9, 8, 7, 6, 5, 4))))
    return Case(f"texts-{kv_type}-{window}-{options}", "attend", _both(*makes), build, "attend", runs, kv_type)


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window": 8, "softcap": 3.0},
        {"window": 0, "alibi": 8.0},
        {"window": 0, "distances": "distances"},
    ],
)
def test_bidirectional_rows_see_the_complete_text(kv_type, options, tmp_path):
    case = texts(kv_type, **options)
    with case.open(tmp_path) as file:
        want, bound = expected(case, file)
        attention = Attention(case, file)
        got = np.concatenate([attention.run(batch) for batch in case.batches()])
        slack = 1e-5 if kv_type == "f32" else halves_bound(case, file)
    assert np.abs(got - want).max() <= bound.max() + slack


# What a row's bits must not hang on: how many rows come with it, whose they are, and where units are merged.
ALONE = {
    "f16-many": _attention("rows-f16-64", 64, 3, "neox", "f16", kv_heads=1),
    "f16-many-window": _attention("rows-f16-80", 72, 1, "neox", "f16", window=70, softcap=4.0, v_dim=70),
    "f16-latent": _attention("rows-f16-latent", 80, 5, "none", "f16", kv_heads=1, v_dim=40, v_in_k=True),
    "q8_0": _attention("rows-q8_0", 64, 2, "neox", "q8_0", kv_heads=1, softcap=3.0),
    "q4": _attention("rows-q4", 64, 2, "neox", "q4", kv_heads=1),
}
if ALL:
    ALONE |= {
        "q8_0-q4": _attention("rows-q8_0-q4", 128, 2, "neox", "q8_0/q4", kv_heads=1, window=90),
        "f16": _attention("rows-f16", 32, 2, "neox", "f16", kv_heads=1),
        "f16-window": _attention("rows-f16-window", 48, 3, "adjacent", "f16", kv_heads=1, window=90, sinks=True),
        "f16-wide": _attention("rows-f16-wide", 128, 20, "adjacent", "f16", kv_heads=1),
        "f32": _attention("rows-f32", 24, 2, "neox", "f32", kv_heads=1, temper=0.2),
    }
TEXTS = [np.random.default_rng(i).integers(0, N_TOKENS, 290) for i in range(3)]
PAGES = [np.random.default_rng(7).permutation(30)[i::3] for i in range(3)]


@pytest.mark.parametrize("name", ALONE)
def test_row_has_the_same_bits_in_every_batch(name, tmp_path, monkeypatch):
    case = ALONE[name]
    with case.open(tmp_path) as file:
        whole = Attention(case, file, 30).run(Batch.of([(TEXTS[0], 0, PAGES[0])]))
        for n_bytes, far in ((0, ops.FAR), (1 << 20, ops.FAR), (1 << 20, 0)):
            monkeypatch.setattr(ops, "PARTIAL_BYTES", n_bytes)
            monkeypatch.setattr(ops, "FAR", far)
            attention, first = Attention(case, file, 30), [0, 0, 0]
            for counts in (
                (200, 3, 0),
                (5, 30, 20),
                (1, 1, 230),
                (9, 0, 1),
                (70, 40, 1),
                (1, 1, 0),
                (1, 0, 0),
                (1, 0, 0),
            ):
                taken = [s for s in (2, 0, 1) if counts[s]]
                parts = [(TEXTS[s][first[s] : first[s] + counts[s]], first[s], PAGES[s]) for s in taken]
                got = attention.run(Batch.of(parts))
                at = sum(counts[s] for s in taken[: taken.index(0)])
                np.testing.assert_array_equal(got[at : at + counts[0]], whole[first[0] : first[0] + counts[0]])
                first = [a + b for a, b in zip(first, counts, strict=True)]


# Heads of 128 columns, all turned, are turned in registers.
@pytest.mark.parametrize(
    ("name", "head_dim", "style"),
    [
        ("f16-many", 64, "adjacent"),
        ("f16-norms", 64, "adjacent"),
        ("f16-128", 128, "adjacent"),
        ("f16-128-neox", 128, "neox"),
        ("q8_0-80", 80, "neox"),
        ("q8_0-128", 128, "adjacent"),
        ("q8_0-norms", 128, "neox"),
    ],
)
def test_row_has_the_same_bits_if_its_steps_run_separately(name, head_dim, style, tmp_path):
    options = {"norms": True} if name.endswith("norms") else {}
    case = _attention(f"rows-{name}-apart", head_dim, 3, style, name.partition("-")[0], kv_heads=2, **options)
    with case.open(tmp_path) as file:
        together, apart = Attention(case, file, 30), Attention(case, file, 30)
        n = len(apart.program.plan.steps)
        for first, count in ((0, 1), (1, 62), (63, 1), (64, 1), (65, 70), (135, 1)):
            batch = Batch.of([(TEXTS[1][first : first + count], first, PAGES[1])])
            for last in range(1, n + 1):
                got = apart.program.run(batch, apart.state, last - 1, last)
            np.testing.assert_array_equal(together.run(batch), got)


@pytest.mark.parametrize("name", ["f16-many", "f16-norms", "f16-window", "q8_0-many"])
def test_rows_of_several_sequences_match_single_rows(name, tmp_path, monkeypatch):
    options = {"f16-norms": {"norms": True}, "f16-window": {"window": 70}}.get(name, {})
    case = _attention(f"rows-{name}-several", 64, 3, "neox", name.partition("-")[0], kv_heads=2, **options)
    firsts = (580 if name.endswith("many") else 70, 64, 100, 0, 72, 65, 30, 1)
    pages = [list(range(20 * s, 20 * s + 20)) for s in range(len(firsts))]
    texts = [(np.roll(np.tile(TEXTS[0], 3), s), firsts[s], pages[s]) for s in range(len(firsts))]
    kernels = []
    with case.open(tmp_path) as file:
        together, alone = Attention(case, file, 160), Attention(case, file, 160)
        for attention in (together, alone):
            for text, n, its_pages in texts:
                for at in range(0, n, 290):  # kept, not attended to
                    batch = Batch.of([(text[at : min(at + 290, n)], at, its_pages)])
                    attention.program.run(batch, attention.state, 0, len(attention.program.plan.steps) - 1)
        launch = together.program.device.launch
        monkeypatch.setattr(
            together.program.device, "launch", lambda kernel, *rest: (kernels.append(kernel), launch(kernel, *rest))
        )
        want = [alone.run(Batch.of([(text[n : n + 1], n, pages)])) for text, n, pages in texts]
        for n_processors in (132, 16, 1):  # runs of a unit, several to a block, and whole sequences
            monkeypatch.setattr(EmulatedDevice, "n_processors", n_processors)
            together.program.emitter.emit()
            got = together.run(Batch.of([(text[n : n + 1], n, pages) for text, n, pages in texts]))
            np.testing.assert_array_equal(got, np.concatenate(want))
        assert sum(kernel.startswith("attend_decode_batch") for kernel in kernels) == 3
        # The next row of each sees what was kept.
        last = Batch.of([(text[n + 1 : n + 2], n + 1, pages) for text, n, pages in texts[1:3]])
        np.testing.assert_array_equal(together.run(last), alone.run(last))


def test_little_shared_memory_changes_no_bits(tmp_path, monkeypatch):
    case = _attention("rows-little", 576, 2, "none", "f16", kv_heads=1, v_dim=512, v_in_k=True)
    batches = [Batch.of([(TEXTS[0][:70], 0, [2, 0, 1])]), Batch.of([(TEXTS[0][70:72], 70, [2, 0, 1])])]
    with case.open(tmp_path) as file:
        results = []
        for kilobytes in (227, 99):
            monkeypatch.setattr(EmulatedDevice, "shared_bytes", kilobytes << 10)
            attention = Attention(case, file, 3)
            results.append(np.concatenate([attention.run(batch) for batch in batches]))
        np.testing.assert_array_equal(*results)
        monkeypatch.setattr(EmulatedDevice, "shared_bytes", 48 << 10)
        with pytest.raises(UnsupportedError, match="heads of 576 needs 91 KB of shared memory, but the GPU gives"):
            Attention(case, file, 3)


@pytest.mark.parametrize("n_rows", [3, 21])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("kind", ["f16-many", "f16-latent", "f16-128", "q8_0", "q4"])
def test_nan_affects_only_rows_that_attend_to_it(kind, name, n_rows, tmp_path):
    case = _attention("rows-f16-128", 128, 1, "neox", "f16", kv_heads=1) if kind == "f16-128" else ALONE[kind]
    tensors = dict(case.tensors())
    if f"{name}.weight" not in tensors:
        pytest.skip("its V is in K")
    values = tensors[f"{name}.weight"].values().copy()
    values[n_rows - 2, 5:] = np.nan
    tensors[f"{name}.weight"] = Raw(GGMLType.F32, values.shape, values.view(np.uint8).reshape(-1))
    with replace(case, make=lambda rng: tensors).open(tmp_path) as file:
        got = Attention(case, file, 1).run(Batch.of([(np.arange(n_rows), 0, [0])], range(n_rows)))
    broken = np.isnan(got).any(axis=1)
    assert broken.tolist() == [row == n_rows - 2 or (row > n_rows - 2 and name != "q") for row in range(n_rows)]


@pytest.mark.parametrize("times", [1e-4, 1e4])
def test_small_and_large_q8_0_numbers_are_as_exact_as_others(times, tmp_path):
    tensors, case = dict(ALONE["q8_0"].tensors()), ALONE["q8_0"]
    values = (tensors["v.weight"].values() * np.float32(times)).astype(np.float32)
    tensors["v.weight"] = Raw(GGMLType.F32, values.shape, values.view(np.uint8).reshape(-1))
    case = replace(case, make=lambda rng: tensors)
    with case.open(tmp_path) as file:
        want, _ = expected(case, file)
        attention = Attention(case, file)
        got = np.concatenate([attention.run(batch) for batch in case.batches()])
    assert np.abs(got - want).max() <= 3e-3 * np.abs(values).max()


def test_cache_without_kernels_is_rejected_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(KV_TYPES, "q4_9", KvType(5, block=32))
    case = replace(ATTENTIONS[QUICK[0]], kv_type="q4_9")
    with (
        case.open(tmp_path) as file,
        pytest.raises(UnsupportedError, match="the cuda backend does not support kv_type q4_9"),
    ):
        Attention(case, file)
