"""Products by the kind of a row on a device of Vulkan: the bits of the cpu backend."""

import numpy as np
import pytest

from tests.runtime.test_linear_id import MIXED, PAIRS, at, batch_of, run, traced
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend


def both(vulkan, pair):
    plan, own = traced(pair, at)
    return [one.compile(plan, own, Options(threads=1)) for one in (vulkan, CpuBackend())]


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_of_two_matrices_match_the_cpu_backend(pair, vulkan):
    program, cpu = both(vulkan, pair)
    wanted = run(cpu, batch_of(MIXED))
    # All rows, one of each kind, few and many, of text alone too.
    for first, last in ((0, 81), (0, 1), (5, 6), (4, 7), (40, 54), (6, 45), (0, 5)):
        found = run(program, batch_of(MIXED[first:last], first))
        np.testing.assert_array_equal(found.view(np.uint32), wanted[first:last].view(np.uint32))
    rows = [0, 7, 44, 45, 48, 80]
    found = run(program, batch_of(MIXED, outputs=rows))
    np.testing.assert_array_equal(found.view(np.uint32), wanted[rows].view(np.uint32))


@pytest.mark.parametrize("place", [2, -1])
def test_missing_matrix_is_rejected(place, vulkan):
    with pytest.raises(ValueError, match="a matrix that the step does not have"):
        run(both(vulkan, "F32")[0], batch_of([0, place]))
