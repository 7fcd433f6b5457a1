"""Cases of the case table on the emulated GPU, against the reference.

The tests run some of each family. All of those whose names begin with one of the arguments:

    python -m tests.runtime.cuda.cases embed rms_norm delta_net
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.cases.ops import expected, run
from tests.cases.scans import ALL
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.harness import CaseProgram
from woolly.plan.passes import fuse


def check(name: str, folder: Path) -> None:
    """Raises AssertionError unless every number of the case lies within its bound of the reference."""
    case, device = ALL[name], EmulatedDevice()
    with case.open(folder) as file:
        want, bound = expected(case, file)
        got = run(case, CaseProgram(device, fuse(case.plan(file)), file.tensors, case.kv_type))
    device.close()
    assert got.shape == want.shape
    if case.check == "exact":
        np.testing.assert_array_equal(got, want)
    error = np.abs(got.astype(np.float64) - want)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: {got[worst]}, expected {want[worst]} within {bound[worst]}"


def main(*prefixes: str) -> int:
    names = [name for name in ALL if name.startswith(prefixes)]
    n_wrong = 0
    for name in names:
        try:
            with tempfile.TemporaryDirectory() as folder:
                check(name, Path(folder))
        except Exception as error:
            n_wrong += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}")
    print(f"{len(names)} cases, {n_wrong} wrong")
    return int(n_wrong > 0 or not names)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
