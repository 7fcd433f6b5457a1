"""Memory of this process: its peak, and a peak that begins anew."""

import subprocess
import sys

import pytest

from woolly.machine.memory import available_memory, peak_mib, reset_peak


def test_some_memory_is_available():
    assert available_memory() > 1 << 20


def test_peak_memory_only_grows():
    before = peak_mib()
    held = bytearray(64 << 20)
    assert peak_mib() >= before > 1
    assert len(held) == 64 << 20


def test_reset_peak_forgets_freed_memory():
    if not reset_peak():
        pytest.skip("this system keeps the peak of a process")
    code = """
from woolly.machine.memory import peak_mib, reset_peak
held = bytearray(256 << 20)
held[::4096] = bytes(len(held) // 4096 + (len(held) % 4096 > 0))
before = peak_mib()
del held
assert reset_peak()
print(before, peak_mib())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    before, after = map(float, done.stdout.split())
    assert after < before - 200


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the size of a process")
def test_process_limit_counts_as_memory():
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))"
    code += "; from woolly.machine.memory import available_memory; print(available_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 2 << 30
