"""The CUDA backend on a real GPU: `python -m pytest -m gpu tests/runtime/cuda`."""

import pytest

from tests.runtime.cuda import real
from tests.runtime.cuda.towers import towers
from tests.runtime.split import real as split
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.cuda.device import open_device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def device():
    """Held open, so that programs share its context."""
    device = open_device()
    yield device
    device.close()


CHECKS = dict(check for ring in (real.ops, real.rows, real.ranks, real.engine) for check in ring(CudaBackend()))
CHECKS |= dict(split.split()) | dict(towers())


@pytest.mark.parametrize("name", CHECKS)
def test_real_model_check(name):
    CHECKS[name]()
