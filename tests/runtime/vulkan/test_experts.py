"""Mixtures of experts on a device of Vulkan: the bits of the cpu backend, for one row, a few and many."""

import numpy as np
import pytest

from tests.cases.moe import MOES
from tests.runtime.test_mixtures import CASES, open_case
from tests.runtime.test_moe import plan_of, write
from woolly.errors import UnsupportedError
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend

# One of each way to choose, to weigh and to fill a block.
NAMES = (
    *("only-one", "odd-sizes", "ties", "sigmoid-normalized", "sparsemixer-near", "norm-scale-residual", "input-Q8_0"),
    *("norm-residual-Q4_K", "F32-Q4_K-F16", "Q4_0-Q5_1-Q8_0", "router-F16", "cap", "shared"),
)
TOKENS = np.random.RandomState(7).randint(0, 24, 70)


def run(program, tokens):
    batch = Batch.of([(tokens, 0, range(3))], [])
    return program.run(batch, program.new_state(3)).copy()


def check(vulkan, plan, file):
    options = Options(threads=1)
    program, cpu = (one.compile(plan, file.tensors, options) for one in (vulkan, CpuBackend()))
    wanted = run(cpu, TOKENS)
    assert np.isfinite(wanted).all()
    for rows in (slice(None), slice(1), slice(40, 45)):
        np.testing.assert_array_equal(run(program, TOKENS[rows]).view(np.uint32), wanted[rows].view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
def test_mixture_matches_the_cpu_backend(name, vulkan, tmp_path):
    with write(tmp_path / "moe.gguf", MOES[name].make(np.random.default_rng(5), 24)) as file:
        check(vulkan, plan_of(file, MOES[name].build), file)


@pytest.mark.parametrize("name", CASES)
def test_mixture_variants_match_the_cpu_backend(name, vulkan, tmp_path):
    file, plan = open_case(tmp_path, name, GGMLType.Q8_0)
    with file:
        check(vulkan, plan, file)


def test_mixtures_without_kernels_are_rejected_by_name(vulkan, tmp_path):
    with write(tmp_path / "moe.gguf", MOES["two-of-8"].make(np.random.default_rng(5), 24)) as file:
        plan = plan_of(file, MOES["two-of-8"].build)
        message = "Vulkan and Metal have no experts of f32 for batches of 32768 rows with 2"
        with pytest.raises(UnsupportedError, match=message):
            vulkan.compile(plan, file.tensors, Options(max_rows=32_768))
