"""Mixtures of experts on the emulated GPU: near the reference, and each row the same in every batch."""

import numpy as np
import pytest

from tests.cases.moe import MOES, Experts
from tests.cases.ops import N_TOKENS
from tests.runtime.cuda.emulated import SOURCES, EmulatedDevice
from tests.runtime.cuda.harness import CaseProgram
from tests.runtime.test_mixtures import CASES, open_case
from tests.runtime.test_moe import plan_of, write
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, choose

T = GGMLType
TOKENS = np.random.RandomState(3).randint(0, N_TOKENS, 12)
# One of each kind; the emulated GPU is slow.
NAMES = (
    *("one-of-8", "all-of-5", "only-one", "three-of-33", "odd-sizes", "tiny", "ties", "equal-sigmoids"),
    *("sigmoid-normalized", "sigmoid-next-to-zero", "sparsemixer", "sparsemixer-near", "sparsemixer-below-0"),
    *("sparsemixer-zeros", "norm-scale-residual", "input-Q8_0", "Q8_0", "norm-residual-Q4_K", "F32-Q4_K-F16"),
    *("Q4_0-Q5_1-Q8_0", "router-F16"),
)


@pytest.fixture(scope="module")
def device():
    names = ("pack", "embed", "moe", "moe_route", "moe_few", "moe_one", "moe_products")
    device = EmulatedDevice(*(SOURCES / f"{name}.cu" for name in names))
    yield device
    device.close()


def run(program, tokens):
    batch = Batch.of([(tokens, 0, range(3))], [])
    return program.run(batch, program.new_state(3)).copy()


def check(device, plan, file, most, tokens=TOKENS):
    """Many rows are near the reference, and rows alone or with a few others have the same bits."""
    want = run(choose("reference").compile(plan, file.tensors, Options()), tokens)
    program = CaseProgram(device, fuse(plan), file.tensors, max_rows=len(tokens))
    got = run(program, tokens)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)
    for rows in (slice(1), slice(len(tokens) - 3, None)):
        np.testing.assert_array_equal(run(program, tokens[rows]).view(np.uint32), got[rows].view(np.uint32))


def mixture(folder, experts):
    file = write(folder / "moe.gguf", experts.make(np.random.default_rng(5), N_TOKENS))
    return file, plan_of(file, experts.build)


@pytest.mark.parametrize("name", NAMES)
def test_a_mixture_is_near_the_reference(name, device, tmp_path):
    file, plan = mixture(tmp_path, MOES[name])
    with file:
        # Halves have 11 bits; random weights of Q4_K cancel each other more than those of a model.
        check(device, plan, file, 1e-5 if all(type == T.F32 for type in MOES[name].types) else 2e-3)


@pytest.mark.parametrize("name", CASES)
def test_what_mixtures_have_besides_is_near_the_reference(name, device, tmp_path):
    file, plan = open_case(tmp_path, name, T.Q8_0)
    with file:
        check(device, plan, file, 2e-3)


def test_an_expert_with_more_rows_than_are_taken_at_once(device, tmp_path):
    experts = Experts(4, 2, (T.Q8_0,) * 3, width=32, ffn=32, logits=(5.0, 1.0, 2.0, 5.5))
    file, plan = mixture(tmp_path, experts)
    with file:
        check(device, plan, file, 2e-3, np.resize(TOKENS, 70))
