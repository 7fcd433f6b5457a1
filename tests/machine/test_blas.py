import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from woolly.machine.blas import import_numpy
import_numpy(sys.argv[1])
print("numpy" in sys.modules, len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(
    ("backend", "given", "printed"),
    [
        ("auto", {}, "True 1 None"),
        ("auto", {"OMP_NUM_THREADS": "3"}, "False 1 None"),
        ("reference", {}, "False 1 None"),
    ],
)
def test_numpy_has_one_thread_unless_requested(backend, given, printed):
    others = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    command = [sys.executable, "-c", SCRIPT, backend]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=others | given).stdout
    assert out.strip() == printed
